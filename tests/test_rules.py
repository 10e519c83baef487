"""core.rules against the real git and against its own promises."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import Damaged
from core.gitignore import parse_gitignore
from core.model import RelPath
from core.rules import (
    DEFAULT_EXCLUDE,
    DEFAULT_PROTECT,
    DirRules,
    RuleSet,
    Verdict,
    is_git_alias,
    verdict_of,
)

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
ONLY_GITIGNORE = RuleSet(exclude=(), protect=())


def root(exclude: str = "", protect: str = "", gitignore: bytes | None = None) -> DirRules:
    rules = RuleSet(exclude=tuple(exclude.split()), protect=tuple(protect.split()))
    return DirRules.root(rules, gitignore)


def reason(path: str, rules: DirRules, files: dict[str, bytes] | None = None) -> str | None:
    """The verdict of a path; a slash at its end makes it a directory."""
    named = {key.encode(): data for key, data in (files or {}).items()}
    plain = RelPath(path.rstrip("/").encode())
    return verdict_of(plain, path.endswith("/"), rules, named.get)


def enter(rules: DirRules, path: str) -> DirRules:
    for name in path.split("/"):
        rules = rules.child(name.encode(), None)
    return rules


# The real git as the judge.


class Git:
    """A throw-away repository that answers what git would ignore."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.work = top / "work"
        self.paths: dict[bytes, bool] = {}
        self.env = {"HOME": str(top), "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null"}
        self.env["PATH"] = os.environ["PATH"]
        self.run("init", "-q", str(self.work), cwd=top)

    def run(self, *args: str, cwd: Path | None = None, data: bytes = b"") -> bytes:
        done = subprocess.run(
            ["git", *args],
            cwd=cwd or self.work,
            env=self.env,
            input=data,
            capture_output=True,
            check=False,
        )
        assert done.returncode in (0, 1), done.stderr
        return done.stdout

    def grow(self, paths: dict[bytes, bool]) -> None:
        """Exactly these files and directories; the same as last time stay as they are."""
        if paths == self.paths:
            return
        for name in os.listdir(self.work):
            if name != ".git":
                one = self.work / name
                shutil.rmtree(one) if one.is_dir() else one.unlink()
        for path, is_dir in paths.items():
            place = Path(os.fsdecode(os.fsencode(self.work) + b"/" + path))
            (place if is_dir else place.parent).mkdir(parents=True, exist_ok=True)
            if not is_dir:
                place.touch()
        self.paths = paths

    def ignored(self, files: dict[bytes, bytes], paths: dict[bytes, bool]) -> set[bytes]:
        """Those of the paths (True: a directory) that git ignores under these .gitignores."""
        self.grow(paths)
        places = {self.work / os.fsdecode(folder) / ".gitignore": files[folder] for folder in files}
        for place, data in places.items():
            place.write_bytes(data)
        asked = b"".join(path + b"\0" for path in paths)
        command = ("check-ignore", "-v", "-n", "--no-index", "--stdin", "-z")
        answer = self.run(*command, data=asked).split(b"\0")[:-1]
        for place in places:
            place.unlink()
        rows = zip(answer[2::4], answer[3::4], strict=True)
        return {path for pattern, path in rows if pattern and not pattern.startswith(b"!")}


@pytest.fixture(scope="module")
def git(tmp_path_factory: pytest.TempPathFactory) -> Git:
    return Git(tmp_path_factory.mktemp("git"))


def ours(files: dict[bytes, bytes], paths: dict[bytes, bool]) -> set[bytes]:
    top = DirRules.root(ONLY_GITIGNORE, files.get(b""))
    return {p for p, is_dir in paths.items() if verdict_of(RelPath(p), is_dir, top, files.get)}


def agree(git: Git, files: dict[bytes, bytes], paths: dict[bytes, bool]) -> None:
    assert ours(files, paths) == git.ignored(files, paths)


PIECES = ["a", "b", "ab", ".", "*", "**", "***", "?", "/", "\\", "[ab]", "[!a]", "[^b-]", "[]a]"]
PIECES += ["[a", "[[:alpha:]]", "[[:foo:]]", "[a-]", "[\\]a]", "!", "#", " ", "\\ ", "\\/", "-"]
PIECES += ["]", "/**/", "**/", "/**", "a/b", "foo", "*.a", "[/a]", "\\*", "[b-a]", "\t", "\xe9"]
USUAL = ["a", "/a", "a/", "!a", "*", "!*/", "*.a", "a/**", "**/b", "!foo", "!/a/b"]
composed = st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map("".join)
lines = (composed | st.sampled_from(USUAL)).map(lambda line: line.encode("latin-1"))
ended = st.tuples(lines, st.sampled_from([b"\n", b"\n", b"\r\n", b"\r\r\n"])).map(b"".join)
bodies = st.lists(ended, max_size=5).map(b"".join)
ignore_files = st.tuples(st.sampled_from([b"", b"\xef\xbb\xbf"]), bodies).map(b"".join)

NAMES = [b"ab", b"x.a", b"a*", b"#", b"!a", b"a ", b"-", b"]", b"\xe9", b"a\\", b"fooa", b"\r"]
FOLDERS = [b"a", b"b", b"foo", b"d", b"ab", b"fooa", b"a/d", b"d/a", b"d/ab", b"d/ab/foo", b"ab/a"]
FILES = [b"/".join((x, y)) for x in (b"a", b"foo", b"b") for y in (*NAMES, b"a", b"b", b"foo")]
FILES += [name for name in NAMES if name not in FOLDERS]
FILES += [b"d/a/b", b"d/ab/foo/b", b"a/d/a", b"fooa/b", b"ab/b", b"ab/a/b"]
TREE = dict.fromkeys(FOLDERS, True) | dict.fromkeys(FILES, False)


@needs_git
@settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    database=None,
)
@given(top=ignore_files, inner=ignore_files, deep=ignore_files)
def test_any_gitignore_means_what_git_says(git: Git, top: bytes, inner: bytes, deep: bytes) -> None:
    agree(git, {b"": top, b"a": inner, b"d/ab": deep}, TREE)


@needs_git
@pytest.mark.parametrize(
    "name",
    [
        *("alnum", "alpha", "blank", "cntrl", "digit", "graph"),
        *("lower", "print", "punct", "space", "upper", "xdigit"),
    ],
)
def test_posix_classes_hold_the_bytes_that_git_holds(git: Git, name: str) -> None:
    bytes_ = [bytes([n]) for n in range(1, 256) if n not in b"/.:"]
    agree(git, {b"": b"[[:%s:]]\n" % name.encode()}, dict.fromkeys(bytes_, False))


@needs_git
@pytest.mark.parametrize(
    "pattern",
    [
        b"foo**/b",
        b"foo**",
        b"/foo**",
        b"/foo**/",
        b"f?o**/b",
        b"foo**\\/b",
        b"a/**\\/b",
        b"x/**",
        b"fo\\o**/b",
        b"foo**/**/b",
        b"f?o**/**/b",
        b"foo**/**/**/d**/b",
        b"**/**/**/b",
        b"a//b",
        b"//a",
        b"/",
        b"//",
        b"!",
        b"!/",
        b"a/*/",
        b"**/",
        b"a/**/",
        b"/**",
        b"[[:alpha:][:digit:]]",
        b"a[/]b",
        b"[",
        b"a\\",
        b"\\",
        b"a\0b",
        b"  ",
        b"a \\ ",
        b"a\\  ",
        b"a \\",
        b"**/a/**/b",
        b"d/**/b",
        b"d/**/*",
        b"*a*b",
        b"[a-a]",
        b"[\\a-\\b]",
        b"[!-a]",
        b"[a-[:alpha:]]",
        b"[[:]",
        b"[[:a]",
        b"foo**//",
        b"\xef\xbb\xbfa",
    ],
)
def test_the_odd_corners_of_git_globs(git: Git, pattern: bytes) -> None:
    agree(git, {b"": pattern + b"\n"}, TREE)
    agree(git, {b"": b"*\n!*/\n!" + pattern}, TREE)


# Tables.


@pytest.mark.parametrize(
    ("gitignore", "path", "expected"),
    [
        ("*.log", "x/y.log", "ignored"),
        ("*.log\n!keep.log", "keep.log", None),
        ("build/", "build", None),
        ("build/", "x/build/", "ignored"),
        ("/build", "x/build", None),
        ("docs/*.txt", "docs/a/b.txt", None),
        ("docs/**/*.txt", "docs/a/b.txt", "ignored"),
        ("dir/\n!dir/keep", "dir/keep", "ignored"),
        ("dir/*\n!dir/keep", "dir/keep", None),
        ("A", "a", None),
        ("a\r\n", "a", "ignored"),
    ],
)
def test_gitignore_lines(gitignore: str, path: str, expected: str | None) -> None:
    assert reason(path, root(gitignore=gitignore.encode())) == expected


def test_a_deeper_gitignore_wins_over_a_shallower_one() -> None:
    files = {"sub": b"!*.log\n"}
    rules = root(gitignore=b"*.log\n")
    assert reason("sub/a.log", rules, files) is None
    assert reason("a.log", rules, files) == "ignored"


def test_gitignore_files_can_be_switched_off() -> None:
    rules = DirRules.root(RuleSet(gitignore=False), b"a\n")
    assert rules.verdict(b"a", False) == "capture"
    assert rules.child(b"d", b"a\n").verdict(b"a", False) == "capture"


def test_an_exclude_cannot_be_undone_by_a_gitignore() -> None:
    assert reason("a.log", root("*.log", gitignore=b"!*.log\n")) == "excluded"


def test_a_negated_exclude_leaves_the_decision_to_the_gitignore() -> None:
    rules = root("*.log !keep.log", gitignore=b"keep.log\n")
    assert reason("keep.log", rules) == "ignored"
    assert reason("keep.log", root("*.log !keep.log")) is None


def test_protect_wins_over_excludes_and_gitignores() -> None:
    rules = root(".env *.db", "*.db .env", gitignore=b".env\n")
    assert reason(".env", rules) is None
    assert reason("x/y.db", rules) is None


def test_everything_below_a_protected_directory_is_captured() -> None:
    rules = root("*.log", "data/", gitignore=b"data/\n")
    assert reason("data/", rules) is None
    assert reason("data/deep/x.log", rules, {"data": b"*\n"}) is None
    assert reason("data/.git/config", rules) == "excluded"


def verdicts(rules: DirRules, *names: str) -> list[Verdict]:
    return [rules.verdict(name.rstrip("/").encode(), name.endswith("/")) for name in names]


def test_an_anchored_protect_leads_through_what_is_left_out() -> None:
    rules = root("build/", "build/keep/** data/local.db", gitignore=b"data/\n")
    assert verdicts(rules, "build/", "data/", "build", "other/build/") == [
        "through",
        "through",
        "capture",
        "capture",
    ]
    inside = enter(rules, "build")
    assert verdicts(inside, "x", "x/", "keep/") == ["excluded", "excluded", "through"]
    assert verdicts(enter(inside, "keep"), "x", "d/") == ["capture", "capture"]
    assert verdicts(enter(inside, "keep/d"), "x", "d/", ".git/") == [
        "capture",
        "capture",
        "excluded",
    ]
    assert verdicts(enter(rules, "data"), "local.db", "other.db") == ["capture", "ignored"]


def test_a_protect_without_a_slash_opens_no_directory_but_counts_where_one_is_entered() -> None:
    rules = root("build/", ".env build/a/b")
    assert verdicts(enter(rules, "build"), ".env", "a/", "c/") == ["capture", "through", "excluded"]
    assert verdicts(enter(rules, "build/c"), ".env") == ["excluded"]
    assert verdicts(root("build/", ".env"), "build/") == ["excluded"]


def test_a_protect_with_two_stars_leads_everywhere() -> None:
    rules = root("build/", "build/**/*.db")
    assert reason("build/a/b/c/x.db", rules) is None
    assert reason("build/a/b/c/", rules) is None
    assert reason("build/a/b/c/x", rules) == "excluded"


def test_a_gitignore_inside_a_left_out_directory_says_nothing() -> None:
    rules = root("build/", "build/keep")
    assert reason("build/x", rules, {"build": b"!x\n"}) == "excluded"


def test_the_root_of_another_workspace_is_left_out_whatever_protects_it() -> None:
    nested = frozenset({RelPath(b"a/inner")})
    rules = DirRules.root(RuleSet(protect=("a/inner/x",), nested=nested), None)
    assert reason("a/inner/x", rules) == "nested-root"
    assert reason("a/inner/", rules) == "nested-root"
    assert reason("a/inner", rules) is None
    assert reason("b/inner/", rules) is None


def test_the_staging_directory_is_excluded_at_the_root_only() -> None:
    rules = root(protect=".turnmark-staging-1/**")
    assert reason(".turnmark-staging-1/", rules) == "excluded"
    assert reason("sub/.turnmark-staging-1/", rules) is None


ALIASES = [".git", ".GIT", ".Git", "git~1", "GIT~1", ".git.", ".git ", ".git. .", ".git\r"]
ALIASES += [".git::$INDEX_ALLOCATION", "git~1:x", ".git\\foo", "git~1 \\x", ".git:x"]
ALIASES += [".g\u200cit", ".git\ufeff", "\u206a.git", ".gi\u202et", ".git\u200f."]


@pytest.mark.parametrize("name", ALIASES)
def test_git_in_any_spelling_is_never_captured(name: str) -> None:
    rules = root(protect="* .git/** **/.git")
    assert is_git_alias(name.encode())
    assert rules.verdict(name.encode(), True) == "excluded"
    assert enter(rules, "sub").verdict(name.encode(), False) == "excluded"
    assert root().verdict(name.encode(), False) == "excluded"


@pytest.mark.parametrize(
    "name", [".gitignore", ".github", "git", "git~2", "x.git", ".git-x", ".g it"]
)
def test_names_that_only_look_like_git_are_captured(name: str) -> None:
    assert not is_git_alias(name.encode())
    assert reason(name, DirRules.root(RuleSet(), None)) is None


def test_the_default_rules() -> None:
    rules = DirRules.root(RuleSet(), b".env\n")
    left_out = ["node_modules/", "a/__pycache__/", "x.pyc", "a.tar.gz", "x.olean", ".tox/"]
    assert [reason(path, rules) for path in left_out] == ["excluded"] * len(left_out)
    kept = [".env", "a/.env.local", "build", "src/", "a.py", "sub/.gitignore"]
    assert [reason(path, rules) for path in kept] == [None] * len(kept)
    assert len(DEFAULT_EXCLUDE) == len(set(DEFAULT_EXCLUDE)) == 53
    assert DEFAULT_PROTECT == (".env", ".env.*")


def test_the_fingerprint_changes_with_the_gitignores_above_and_only_with_them() -> None:
    top = root(gitignore=b"a\n")
    assert top.child(b"x", None).fingerprint == top.fingerprint
    assert top.child(b"x", b"b").fingerprint != top.fingerprint
    assert root(gitignore=b"a\n").child(b"x", b"b").fingerprint == top.child(b"x", b"b").fingerprint
    moved = top.child(b"x", None).child(b"y", b"b"), top.child(b"x", b"b").child(b"y", None)
    assert moved[0].fingerprint != moved[1].fingerprint
    assert root("a").fingerprint != root(protect="a").fingerprint


def test_a_ruleset_survives_json() -> None:
    rules = RuleSet(("a", "\udcff"), (), False, 0, 5, frozenset({RelPath(b"x/\xff")}))
    assert RuleSet.from_json(rules.to_json() | {"later": 1}) == rules
    assert RuleSet.from_json({}) == RuleSet()


@pytest.mark.parametrize("doc", [{"exclude": "a"}, {"protect": [1]}, {"max_files": "x"}])
def test_a_damaged_ruleset_is_named(doc: dict[str, object]) -> None:
    with pytest.raises(Damaged):
        RuleSet.from_json(doc)


def test_a_glob_made_to_be_slow_is_not() -> None:
    stars = b"*a" * 30 + b"b\n" + b"**/a/" * 30 + b"b\n" + b"a**/" * 2000 + b"b\n"
    rules = root(gitignore=stars)
    for _ in range(60):
        assert rules.verdict(b"a" * 250, False) == "capture"
        rules = rules.child(b"a", None)


def test_a_tree_deeper_than_the_stack_can_be_judged() -> None:
    assert enter(root("*.log"), "/".join("d" * 3000)).verdict(b"x.log", False) == "excluded"


def test_a_path_below_the_root_is_the_root_itself() -> None:
    assert verdict_of(RelPath(b""), True, root("*"), lambda _: None) is None
    assert len(parse_gitignore(b"# a\n\n!\n/\n[a\nx\n")) == 1
