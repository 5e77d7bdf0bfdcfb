"""The style of this project as far as a program can check it (the rest is for readers).

A limit says where a function or a file has taken in a second idea; it is met by splitting at that
idea. What a comment refers to must exist.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import LONGEST, WITH_SPARK

ROOT = Path(__file__).parent.parent
PRODUCT = ("common", "proposer", "safekeeper", "spark", "cli")
FUNCTION_LINES_MAX = 60
FILE_LINES_MAX = 500
COLUMNS_MAX = 100
# Names that say nothing about what is inside.
BANNED_NAMES = ("utils", "util", "helpers", "helper", "manager", "types", "core", "misc", "common")
# Shells: who may look at the clock or draw lots. Everything else is given time and randomness, so
# that a simulated run of it can be repeated.
UNREPEATABLE = re.compile(r"\b(time|random|secrets|datetime|uuid)\.\w+\(|\bos\.urandom\b")
MAY_BE_UNREPEATABLE = (
    "cli/walkeeper_cli/bench/archive_put.py",
    "cli/walkeeper_cli/bench/disk.py",
    "cli/walkeeper_cli/bench/show.py",
    "cli/walkeeper_cli/cluster/create.py",
    "cli/walkeeper_cli/demo/stage.py",
    "cli/walkeeper_cli/commands/archive.py",
    "cli/walkeeper_cli/commands/standby_check.py",
    "cli/walkeeper_cli/commands/status.py",
    "cli/walkeeper_cli/history/tail.py",
    "cli/walkeeper_cli/local/ports.py",
    "cli/walkeeper_cli/cluster/replace.py",
    "cli/walkeeper_cli/restore/patience.py",
    "cli/walkeeper_cli/restore/prefetching.py",
    "cli/walkeeper_cli/restore/asking.py",
    "cli/walkeeper_cli/restore/safekeeper.py",
    "cli/walkeeper_cli/restore/spool.py",
    "cli/walkeeper_cli/snapshot/published_tables.py",
    "cli/walkeeper_cli/standby_check/data_directory.py",
    "cli/walkeeper_cli/standby_check/vouching.py",
    "spark/walkeeper_history/wal/live.py",
    "spark/walkeeper_history/wal/safekeeper_link.py",
    "spark/walkeeper_pager/daemon.py",
    "spark/walkeeper_pager/following.py",
    "spark/walkeeper_pager/pager.py",
    "common/walkeeper_common/shell/logs.py",
    "common/walkeeper_common/shell/worker_thread.py",
    "proposer/walkeeper_proposer/daemon.py",
    "proposer/walkeeper_proposer/postgres/primary.py",
    "proposer/walkeeper_proposer/settling.py",
    "safekeeper/walkeeper_safekeeper/daemon.py",
    "safekeeper/walkeeper_safekeeper/log_catalog.py",
)
SCENARIO = re.compile(r"\bscenarios/[\w./-]+\.txt")
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


PRODUCT_FILES = python_files(*PRODUCT)
ALL_FILES = PRODUCT_FILES + python_files("tests")


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_the_files_are_found() -> None:
    assert len(PRODUCT_FILES) > 40 and len(ALL_FILES) > len(PRODUCT_FILES) + 10


@pytest.mark.parametrize("path", ALL_FILES, ids=shown)
def test_a_file_has_one_idea(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) <= FILE_LINES_MAX, f"{shown(path)}: {len(lines)} lines"
    for number, line in enumerate(lines, 1):
        assert len(line) <= COLUMNS_MAX, f"{shown(path)}:{number}: {len(line)} columns"
        assert not UNFINISHED.search(line), f"{shown(path)}:{number}: open an issue instead"
        assert not re.search(r"#{5}", line), f"{shown(path)}:{number}: no banners"


@pytest.mark.parametrize("path", ALL_FILES, ids=shown)
def test_a_function_fits_on_a_screen(path: Path) -> None:
    for function in functions(ast.parse(path.read_text())):
        assert function.end_lineno is not None
        lines = function.end_lineno - function.lineno + 1
        assert lines <= FUNCTION_LINES_MAX, f"{shown(path)}: {function.name} has {lines} lines"


@pytest.mark.parametrize("path", PRODUCT_FILES, ids=shown)
def test_a_module_says_what_it_is(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), f"{shown(path)} has no docstring"
    if not shown(path).startswith("cli/"):
        printed = [
            node.lineno
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "print"
        ]
        assert not printed, f"{shown(path)}:{printed}: the log is for that"
    for function in functions(tree):
        assert not function.name.startswith("maybe_"), f"{function.name}: say when"


@pytest.mark.parametrize("path", PRODUCT_FILES, ids=shown)
def test_only_shells_look_at_the_clock_or_draw_lots(path: Path) -> None:
    if shown(path) in MAY_BE_UNREPEATABLE:
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Attribute | ast.Call):
            found = UNREPEATABLE.search(f"{ast.unparse(node)}")
            assert not found, f"{shown(path)}:{node.lineno}: {found}"
            if isinstance(node, ast.ImportFrom):
                assert node.module not in ("time", "random", "secrets", "uuid"), shown(path)


def test_every_shell_that_may_look_at_the_clock_exists() -> None:
    assert not [name for name in MAY_BE_UNREPEATABLE if not (ROOT / name).is_file()]


def test_the_files_of_the_one_java_machine_are_those_that_take_it() -> None:
    takers = [
        shown(path)
        for path in ALL_FILES
        if re.search(r"\(.*\bspark: |\bmark\.spark$", path.read_text(), re.MULTILINE)
    ]
    assert sorted(takers) == sorted(WITH_SPARK)
    assert not [name for name in LONGEST if not (ROOT / name).is_file()]


@pytest.mark.parametrize("path", ALL_FILES, ids=shown)
def test_a_name_says_something(path: Path) -> None:
    assert path.stem not in BANNED_NAMES, shown(path)


def test_every_scenario_that_is_named_exists() -> None:
    missing = [
        f"{shown(path)}: {name}"
        for path in [*ALL_FILES, *sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]
        for name in SCENARIO.findall(path.read_text())
        if path != Path(__file__) and not (ROOT / "tests" / name).exists()
    ]
    assert not missing, missing


# Where Spark itself looks for the data source.
MAY_REEXPORT = ("spark/pyspark_pgwal/__init__.py",)


def test_packages_reexport_nothing() -> None:
    for path in PRODUCT_FILES:
        if path.name == "__init__.py" and shown(path) not in MAY_REEXPORT:
            body = ast.parse(path.read_text()).body
            assert len(body) <= 1, f"{shown(path)}: one import path per name"
