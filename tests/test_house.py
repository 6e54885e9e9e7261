"""The rules of the house, checked on the source itself."""

from __future__ import annotations

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "tidemill"
MODULES = sorted(PACKAGE.rglob("*.py"))


def imports_of(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


def folder_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0] if path.parent != PACKAGE else ""


MODULE_NAMES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in MODULES
}


def modules_used(path: Path, inside_functions: bool) -> set[str]:
    """The modules of the package that a module loads: when it is imported, or also when it runs."""
    used: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.FunctionDef | ast.Lambda) and not inside_functions:
            return
        if isinstance(node, ast.Import):
            used.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                used.add(inner if inner in MODULE_NAMES else node.module)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text()))
    return used & MODULE_NAMES.keys()


def a_cycle(graph: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


# Imports inside functions that close a cycle, and why.
CLOSE_A_CYCLE = {
    # Opens the right implementation of its own interface; pyarrow.fs is loaded only where it is needed.
    ("tidemill.checkpoint.storage", "tidemill.checkpoint.arrow_storage"),
    ("tidemill.checkpoint.storage", "tidemill.checkpoint.local_storage"),
}


def test_no_module_imports_itself_in_a_circle() -> None:
    graph = {name: modules_used(path, False) for name, path in MODULE_NAMES.items()}
    assert a_cycle(graph) == []


def test_imports_inside_functions_hide_no_other_circle() -> None:
    graph = {name: modules_used(path, True) for name, path in MODULE_NAMES.items()}
    assert all(used in graph[name] for name, used in CLOSE_A_CYCLE), "an exception is outdated"
    for name, used in CLOSE_A_CYCLE:
        graph[name].discard(used)
    assert a_cycle(graph) == []


# The folders that a folder may use. Imports for type checking count as well.
BELOW = {"common", "failures", "checkpoint", "progress", "state", "batches", "spark", "tasks"}
MAY_USE = {
    "common": set(),
    "failures": {"common"},
    "checkpoint": {"common"},
    "progress": {"common", "failures"},
    "state": {"common", "checkpoint"},
    "tasks": {"common", "checkpoint", "state", "batches"},
    "spark": {"common", "failures", "tasks"},
    "batches": {"common", "checkpoint", "state", "progress", "spark", "tasks"},
    "kafka": {"common"},
    "sources": {"common", "checkpoint", "batches", "kafka", "spark", "tasks"},
    "sinks": {"common", "checkpoint", "batches", "kafka", "spark", "tasks"},
    "receivers": BELOW | {"sources", "kafka"},
    "streaming": BELOW | {"sources", "receivers", "kafka"},
    "sql": BELOW | {"sources", "receivers", "sinks"},
    "testing": {"common", "streaming", "sql", "sources", "batches"},
    "cli": {"common", "failures"},
}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_dependencies_point_one_way(path: Path) -> None:
    folder = folder_of(path)
    if not folder:
        return
    used = {
        name.split(".")[1]
        for name in imports_of(path)
        if name.startswith("tidemill.") and name != "tidemill.errors"
    }
    assert used - {folder} <= MAY_USE[folder]


def test_the_jvm_is_touched_in_one_folder_only() -> None:
    internals = re.compile(r"\b(_jvm|_jsparkSession|_jdf|_gateway|_jrdd|_jsc|_jconf)\b|\bpy4j\b")
    elsewhere = [
        str(path.relative_to(ROOT))
        for path in MODULES
        if folder_of(path) != "spark" and internals.search(path.read_text())
    ]
    assert elsewhere == []


def test_only_the_clock_reads_the_clock() -> None:
    reading = re.compile(r"\btime\.(time|time_ns|monotonic|sleep)\b|datetime\.(now|utcnow)\b")
    readers = [str(p.relative_to(PACKAGE)) for p in MODULES if reading.search(p.read_text())]
    assert readers == ["common/clock.py"]


def test_no_test_sleeps_to_wait_for_a_batch() -> None:
    """Sleeping inside a task or a child process, to be slow on purpose, is allowed."""
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "time.sleep":
                assert path.name == "test_context.py", path
                assert ast.unparse(node.args[0]) == "600"


def test_modules_stay_small() -> None:
    long = {
        str(p.relative_to(ROOT)): n for p in MODULES if (n := len(p.read_text().splitlines())) > 400
    }
    assert long == {}


def test_no_room_is_a_corridor() -> None:
    """A folder is a room: one can see on which machine its code runs, and read all names at once."""
    crowded = {}
    for tree in (PACKAGE, ROOT / "tests"):
        for folder in {path.parent for path in tree.rglob("*.py")}:
            files = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
            if len(files) > 16:
                crowded[str(folder.relative_to(ROOT))] = len(files)
    assert crowded == {}


def test_tests_lie_where_their_code_lies() -> None:
    """``contract``, ``cluster``, ``comparison`` and ``faults`` belong to no single room."""
    apart = {"contract", "cluster", "comparison", "faults"}
    elsewhere = [
        str(folder.relative_to(ROOT))
        for folder in {path.parent for path in (ROOT / "tests").rglob("test_*.py")}
        if folder != ROOT / "tests"
        and folder.name not in apart
        and not (PACKAGE / folder.relative_to(ROOT / "tests")).is_dir()
    ]
    assert elsewhere == []


def test_helpers_are_not_in_test_modules() -> None:
    importing = {
        f"{path.relative_to(ROOT)} imports {name}"
        for path in (ROOT / "tests").rglob("*.py")
        for name in imports_of(path)
        if re.fullmatch(r"tests\.(.+\.)?(test_\w+|conftest)", name)
    }
    assert importing == set()


def test_the_lock_file_has_exact_versions_and_no_addresses() -> None:
    lines = [
        line
        for line in (ROOT / "requirements.lock").read_text().splitlines()
        if not line.startswith("#")
    ]
    assert all(re.fullmatch(r"[a-z0-9.-]+==[^ ]+( ; .+)?", line) for line in lines)
    assert "pyspark==4.3.0" in lines
    for path in (ROOT / "requirements.lock", ROOT / "pyproject.toml", ROOT / "Makefile"):
        assert "://" not in path.read_text()


def test_ci_calls_exactly_make_test() -> None:
    commands = [
        line for line in (ROOT / ".ci" / "run").read_text().splitlines() if not line.startswith("#")
    ]
    assert commands[-1] == "exec make test"


def test_every_setting_is_on_its_page() -> None:
    from tidemill.common.config import ALL_SETTINGS

    page = (ROOT / "docs" / "settings.md").read_text()
    assert [setting.key for setting in ALL_SETTINGS if f"`{setting.key}`" not in page] == []
