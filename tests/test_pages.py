"""README and docs: their programs run as they are written, and what they name exists.

The programs of a page run in their order, as one program, on one Spark session for all pages.
``tests/page_worlds.py`` has what is outside of each. A new page without a world fails.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import tidemill.errors
from tests.page_worlds import WITHOUT_PROGRAMS, WORLDS
from tests.pages import PAGES, ROOT, blocks, programs, prose, run_page
from tidemill.cli.main import main as tidemill_command

WIDTH = 100


# -- the programs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("page", WORLDS)
def test_the_programs_of_a_page_run(page: str, spark: SparkSession, tmp_path: Path) -> None:
    run_page(page, WORLDS[page], spark, tmp_path)


@pytest.mark.parametrize("page", WORLDS)
def test_a_program_imports_what_it_uses(page: str) -> None:
    """A reader may begin anywhere on a page: a block has the imports of all modules that it names.

    Things that earlier blocks of the page have made, such as ``spark``, it may go on with.
    """
    imported: set[str] = set()
    for block in programs(page):
        tree = ast.parse(block.text)
        own = {
            (alias.asname or alias.name).partition(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert (used & imported) - own == set(), f"{page}, line {block.line + 1}"
        imported |= own


def test_every_page_is_tested() -> None:
    assert set(WORLDS) | WITHOUT_PROGRAMS == set(PAGES)
    assert [page for page in PAGES if bool(programs(page)) != (page in WORLDS)] == []


# -- what pages name -------------------------------------------------------------------------------


def code(page: str) -> list[str]:
    """All code of a page: its blocks, and what stands in backticks."""
    return [block.text for block in blocks(page)] + re.findall(r"`([^`\n]+)`", prose(page))


@pytest.mark.parametrize("page", PAGES)
def test_commands_exist(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    makefile = (ROOT / "Makefile").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for text in code(page):
        for target in re.findall(r"(?:^|\$ )make ([a-z-]+)", text, re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"
        for module in re.findall(r"python -m benchmarks (\w+)", text):
            assert (ROOT / "benchmarks" / f"{module}.py").exists(), module
        for extra in re.findall(r"tidemill\[(\w+)\]", text):
            assert extra in extras
        for subcommand, rest in re.findall(r"(?:^|/|\$ )tidemill ([a-z]+)(.*)", text, re.MULTILINE):
            with pytest.raises(SystemExit, match="0"):
                tidemill_command([subcommand, "--help"])
            known = capsys.readouterr().out
            assert [
                option for option in re.findall(r"--\w[\w-]*", rest) if option not in known
            ] == []


def test_options_of_tidemill_run_are_on_its_page(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        tidemill_command(["run", "--help"])
    options = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help"}
    on_the_page = {text for text in code("running.md") if text.startswith("--")}
    assert on_the_page == options


@pytest.mark.parametrize("page", PAGES)
def test_names_exist(page: str) -> None:
    for text in code(page):
        for path in re.findall(r"\b(?:examples|tidemill|tests|tools|benchmarks)/[\w/*.-]+", text):
            assert list(ROOT.glob(path.rstrip("/"))), path
        for name in re.findall(r"(?<![\w.])tidemill(?:\.[a-z_]\w*)+(?:\.[A-Z]\w+)?", text):
            if name not in ("tidemill.spark.log", "tidemill.rates"):  # a setting, a field of a file
                assert resolves(name), name
        for name in re.findall(r"^[A-Z]\w+Error$", text):
            assert hasattr(tidemill.errors, name) or hasattr(builtins, name), name


def resolves(name: str) -> bool:
    """True if a dotted name leads to a module or to an attribute of one."""
    found: Any = tidemill
    module = "tidemill"
    for part in name.split(".")[1:]:
        module = f"{module}.{part}"
        if not hasattr(found, part):
            try:
                importlib.import_module(module)
            except ModuleNotFoundError:
                return False
        found = getattr(found, part)
    return True


@pytest.mark.parametrize("page", PAGES)
def test_changes_that_pages_show_leave_programs(page: str) -> None:
    for block in blocks(page):
        if block.language == "diff":
            lines = [line for line in block.text.splitlines() if not line.startswith("-")]
            after = "\n".join(line[1:] for line in lines)
            compile(after, page, "exec")
            for line in after.splitlines():
                if line.startswith("from tidemill"):
                    exec(line, {})


def test_every_fault_point_is_on_its_page() -> None:
    calls = re.compile(r'\bfault_point\(\s*f?"([^"]+)"')
    # A part of a name that is decided at run time stands for any word.
    points = {
        re.sub(r"\{.+?\}", "[a-z]+", name)
        for path in (ROOT / "tidemill").rglob("*.py")
        for name in calls.findall(path.read_text())
    }
    table = re.findall(r"^\| (`[a-z.`, -]+`) \|", prose("testing.md"), re.MULTILINE)
    on_the_page = {name for row in table for name in re.findall(r"`([a-z]+\.[a-z-]+)`", row)}
    missing = {p for p in points if not any(re.fullmatch(p, name) for name in on_the_page)}
    gone = {name for name in on_the_page if not any(re.fullmatch(p, name) for p in points)}
    assert (missing, gone) == (set(), set())


def test_the_architecture_shows_all_folders_and_classes_that_exist() -> None:
    package = ROOT / "tidemill"
    tree = next(b.text for b in blocks("architecture.md") if b.text.startswith("tidemill/"))
    rooms = re.findall(r"^  (\w+)/", tree, re.MULTILINE)
    assert sorted(rooms) == sorted(
        path.name for path in package.iterdir() if (path / "__init__.py").exists()
    )
    room = ""
    for indent, name in re.findall(r"^( +)(\w+)/ ", tree, re.MULTILINE):
        room = name if len(indent) == 2 else room
        assert len(indent) == 2 or (package / room / name).is_dir(), f"{room}/{name}"
    classes = {
        name
        for path in package.rglob("*.py")
        for name in re.findall(r"^class (\w+)", path.read_text(), re.MULTILINE)
    }
    drawn = {
        name
        for text in code("architecture.md")
        for name in re.findall(r"\b(?:[A-Z][a-z]+){2,}\b", text)
    }
    assert drawn - classes - {"DataFrame", "StreamingQueryProgress"} == set()


# -- how pages look --------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
def test_prose_is_wrapped(page: str) -> None:
    long = [
        f"{number}: {line}"
        for number, line in enumerate(prose(page).splitlines(), 1)
        if not line.startswith("|") and len(re.sub(r"\]\([^)]*\)", "]", line)) > WIDTH
    ]
    assert long == []


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    here = PAGES[page]
    for target, anchor in re.findall(r"\]\(([\w./-]*\.md)?(#[\w-]+)?\)", prose(page)):
        file = here.parent / target if target else here
        assert file.exists(), f"{page}: {target}"
        assert not anchor or anchor[1:] in anchors(file), f"{page}: {target}{anchor}"


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
