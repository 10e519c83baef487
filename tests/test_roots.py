"""Which directories may be workspaces: the dangerous ones are refused, with a reason."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from core.disk import REAL, Disk
from core.errors import BadInput
from core.roots import CLOSED, SYSTEM, Root, check_root, root_of
from tests.test_scan import powerless
from tests.trees import build


def check(path: object, base: Path, home: str = "home", store: str = "data/store") -> Root:
    return check_root(REAL, str(path), home=str(base / home), store=str(base / store))


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return build(
        tmp_path,
        {"home/project/": "", "home/.local/": "", "data/store/objects/": "", "other/deep/dir/": "",
         "file": "x"},
    )  # fmt: skip


def refused(path: object, base: Path, why: str) -> None:
    with pytest.raises(BadInput, match=why) as caught:
        check(path, base)
    assert caught.value.hint


@pytest.mark.parametrize("path", ["home/project", "home/.local", "other", "other/deep/dir"])
def test_the_directory_of_a_project_is_allowed(base: Path, path: str) -> None:
    assert check(base / path, base) == root_of(os.fsencode(os.path.realpath(base / path)))


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("home", "is your home directory"),
        (".", "is your home directory, or holds it|holds turnmark's own store"),
        ("data", "holds turnmark's own store"),
        ("data/store", "own store"),
        ("data/store/objects", "lies in it"),
        ("file", "is not a directory"),
        ("nowhere", "does not exist"),
        ("file/below", "cannot be read|does not exist"),
    ],
)
def test_a_dangerous_or_impossible_directory_is_refused(base: Path, path: str, why: str) -> None:
    refused(base / path, base, why)


@pytest.mark.parametrize(
    "path", ["/", "//", "/.", "/home", "/tmp", "/etc", "/usr/lib", "/proc/self"]
)
def test_directories_of_the_system_are_refused(base: Path, path: str) -> None:
    refused(path, base, "file system|home directory|system|holds turnmark's own store")


@pytest.mark.parametrize("path", [*SYSTEM, *CLOSED])
def test_everything_on_the_list_is_refused_where_it_exists(base: Path, path: bytes) -> None:
    if not os.path.isdir(path):
        refused(os.fsdecode(path), base, "does not exist|not a directory")
    else:
        refused(os.fsdecode(path), base, "cannot be a workspace|cannot be read")


@pytest.mark.parametrize("path", ["", "\0", "a\0b", "a\ud83d"])
def test_no_path_at_all_is_refused(base: Path, path: str) -> None:
    refused(path, base, "empty or holds a NUL")


def test_a_root_behind_links_is_the_directory_they_lead_to(base: Path) -> None:
    (base / "link").symlink_to("home/project")
    (base / "up").symlink_to("home")
    real = check(base / "home/project", base)
    assert check(base / "link", base) == real
    assert check(base / "up/project", base) == real
    assert check(f"{base}/other/../home/./project//", base) == real


def test_a_link_to_what_is_refused_is_refused(base: Path) -> None:
    for name, target in (("a", "home"), ("b", "data"), ("c", "/"), ("d", "data/store")):
        (base / name).symlink_to(target)
        refused(base / name, base, "cannot be a workspace")
    (base / "loop").symlink_to("loop")
    refused(base / "loop", base, "loop")


def test_home_and_store_behind_links_are_known_as_well(base: Path) -> None:
    (base / "my home").symlink_to("home")
    (base / "my data").symlink_to("data")
    for path in ("home", "data", "data/store"):
        with pytest.raises(BadInput):
            check(base / path, base, "my home", "my data/store")


def test_a_name_that_begins_like_the_store_is_not_in_it(base: Path) -> None:
    for name in ("data/store2", "data/sto", "home2", "homes/x"):
        (base / name).mkdir(parents=True)
        assert check(base / name, base).path == os.fsencode(os.path.realpath(base / name))


def test_a_store_that_does_not_exist_yet_is_kept_out_all_the_same(base: Path) -> None:
    for store in ("other/deep/later/store", "other/store"):
        with pytest.raises(BadInput, match="holds turnmark's own store"):
            check(base / "other", base, store=store)


def test_any_bytes_may_be_in_a_name(base: Path) -> None:
    name = os.path.join(os.fsencode(base), b"\xff\n\x1b")
    os.mkdir(name)
    root = check_root(REAL, os.fsdecode(name), home=str(base / "home"), store=str(base / "s"))
    assert root.path == os.path.realpath(name)
    assert os.fsencode(root.shown) == root.path


def test_the_id_is_made_of_the_resolved_path_alone(base: Path) -> None:
    root = check(base / "other", base)
    assert root.id == hashlib.sha256(root.path).hexdigest()[:16]
    assert root.id != check(base / "other/deep", base).id


def test_a_directory_that_may_not_be_read_is_refused_with_a_reason(base: Path) -> None:
    for mode in (0, 0o300):
        os.chmod(base / "other", mode)
        try:
            powerless(lambda: refused(base / "other", base, "cannot be read"))
            if not mode:
                powerless(lambda: refused(base / "other/deep", base, "cannot be read"))
        finally:
            os.chmod(base / "other", 0o755)


class Mounted(Disk):
    """As if another file system began at a directory."""

    def __init__(self, at: Path) -> None:
        self.at = os.fsencode(os.path.realpath(at))

    def lstat(self, name: bytes | str, at: int | None = None) -> os.stat_result:
        info = super().lstat(name, at)
        if name != self.at:
            return info
        return os.stat_result([*info[:2], info.st_dev + 1, *info[3:10]])


def test_the_root_of_another_file_system_is_refused_and_what_is_on_it_is_not(base: Path) -> None:
    disk = Mounted(base / "other")
    home, store = str(base / "home"), str(base / "data/store")
    with pytest.raises(BadInput, match="mounted file system"):
        check_root(disk, str(base / "other"), home=home, store=store)


IN_A_NAMESPACE = """
import sys, subprocess
from core.disk import REAL
from core.errors import BadInput
from core.roots import check_root
base = sys.argv[1]
def mount(*words): subprocess.run(["mount", *words], check=True)
mount("-t", "tmpfs", "none", f"{base}/other")
mount("--bind", f"{base}/home", f"{base}/bound")
mount("--bind", f"{base}/data", f"{base}/bound2")
for name in sys.argv[2:]:
    try:
        check_root(REAL, f"{base}/{name}", home=f"{base}/home", store=f"{base}/data/store")
        print(name, "allowed")
    except BadInput as error:
        print(name, "refused")
"""


def test_bind_mounts_of_home_and_store_are_refused_too(base: Path) -> None:
    for name in ("bound", "bound2"):
        (base / name).mkdir()
    paths = ["other", "bound", "bound2", "bound2/store", "bound2/store/objects"]
    command = ["unshare", "-rm", sys.executable, "-c", IN_A_NAMESPACE, str(base), *paths]
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    if "mount failed" in done.stderr or "unshare" in done.stderr or "CalledProcess" in done.stderr:
        pytest.skip(f"no mount namespace to be had here: {done.stderr.splitlines()[-1]}")
    assert done.stdout.splitlines() == [f"{path} refused" for path in paths], done.stderr


def test_a_repository_of_the_user_is_no_workspace(tmp_path: Path) -> None:
    (tmp_path / "proj/.git/refs").mkdir(parents=True)
    for name in (".git", ".git/refs"):
        with pytest.raises(BadInput, match=r"\.git"):
            check_root(REAL, f"{tmp_path}/proj/{name}", home="/nonexistent", store="/nonexistent/s")
