"""The layers of DESIGN section 4, kept by looking at what each module imports."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CORE = sorted((ROOT / "core").rglob("*.py"))
WATCHER = sorted((ROOT / "watcher").rglob("*.py"))
# In the standard library, and yet not for core: it has no sockets, argv, or servers.
NOT_FOR_CORE = {"socket", "socketserver", "http", "asyncio", "argparse", "select", "selectors"}


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imports(tree: ast.AST, package: str) -> Iterator[str]:
    """Every module named by an import, dotted; relative ones from their package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level:
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*above, *filter(None, [node.module])])
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def roots(path: Path) -> set[str]:
    package = ".".join(path.parent.relative_to(ROOT).parts)
    return {name.partition(".")[0] for name in imports(tree_of(path), package)}


def module_level(tree: ast.Module) -> ast.Module:
    """Without what only runs when called, or is only there for types."""
    kept = [
        node
        for node in tree.body
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
    ]
    return ast.Module(kept, [])


def needs(path: Path) -> set[str]:
    """The modules of core that a module of core needs before it can be imported."""
    names = {file.stem for file in CORE}
    found = imports(module_level(tree_of(path)), "core")
    return {name.split(".")[1] for name in found if name.startswith("core.")} & names - {path.stem}


# Session states are YAML by contract: agents and people write them too.
FROM_OUTSIDE = {"sessions": {"yaml"}}


@pytest.mark.parametrize("path", CORE, ids=lambda path: path.stem)
def test_core_needs_nothing_but_the_standard_library(path):
    allowed = (sys.stdlib_module_names | {"core", "isal"}) - NOT_FOR_CORE
    assert roots(path) <= allowed | FROM_OUTSIDE.get(path.stem, set())


@pytest.mark.parametrize("path", CORE, ids=lambda path: path.stem)
def test_core_never_removes_a_tree_wholesale(path):
    names = {getattr(node, "attr", getattr(node, "id", "")) for node in ast.walk(tree_of(path))}
    defined = {getattr(node, "name", "") for node in ast.walk(tree_of(path))}
    assert not any("rmtree" in str(name) for name in names | defined)


def test_core_has_no_import_cycle():
    order = TopologicalSorter({path.stem: needs(path) for path in CORE})
    assert list(order.static_order())


def test_the_page_names_every_room_and_no_room_needs_one_below_it():
    page = tree_of(ROOT / "core/__init__.py")
    lines = [line for line in (ast.get_docstring(page) or "").splitlines() if line[:2] == "  "]
    rooms = [line.partition(":")[0].split(", ") for line in lines if line[2].isalpha()]
    place = {name.strip(): n for n, names in enumerate(rooms) for name in names}
    assert place.keys() == {path.stem for path in CORE} - {"__init__"}
    for path in CORE:
        low = [other for other in needs(path) if place[other] > place.get(path.stem, len(rooms))]
        assert not low, f"{path.stem} needs {low}"


def test_watchdog_is_known_to_source_alone():
    importers = {path.name for path in CORE + WATCHER if "watchdog" in roots(path)}
    assert importers <= {"source.py"}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("import watchdog.events", {"watchdog.events"}),
        ("from . import disk", {"core.disk"}),
        ("from .model import Oid", {"core.model.Oid"}),
        ("def f():\n    from socket import socket", {"socket.socket"}),
    ],
)
def test_every_form_of_import_is_seen(text, names):
    assert set(imports(ast.parse(text), "core")) == names
