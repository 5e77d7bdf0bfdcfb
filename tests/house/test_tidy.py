"""The style of this project as far as a program can check it (the rest is for readers).

A limit says where a function or a file has taken in a second idea; it is met by splitting at that
idea. The objects that a comment refers to must exist.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.support.folders import PRODUCT, ROOT
from tests.support.scheduling import SECONDS, WITH_SPARK

FUNCTION_LINES_MAX = 60
FILE_LINES_MAX = 500
COLUMNS_MAX = 100
# Names that say nothing about what is inside.
BANNED_NAMES = ("utils", "util", "helpers", "helper", "manager", "types", "core", "misc", "common")
# Shells: who may look at the clock or draw lots. Everything else is given time and randomness, so
# that a simulated run of it can be repeated.
UNREPEATABLE_MODULES = ("time", "random", "secrets", "datetime", "uuid")
MAY_BE_UNREPEATABLE = (
    "lab/walkeeper_lab/bench/archive_put.py",
    "lab/walkeeper_lab/bench/delay_line.py",
    "lab/walkeeper_lab/bench/disk.py",
    "lab/walkeeper_lab/bench/bench_run.py",
    "admin/walkeeper_admin/closed_start.py",
    "admin/walkeeper_admin/create.py",
    "lab/walkeeper_lab/demo/stage.py",
    "lab/walkeeper_lab/local/child_process.py",
    "cli/walkeeper_cli/commands/archive.py",
    "cli/walkeeper_cli/certs/local_files.py",
    "cli/walkeeper_cli/commands/certs.py",
    "cli/walkeeper_cli/commands/user.py",
    "safekeeper/walkeeper_safekeeper/replication/password_login.py",
    "common/walkeeper_common/shell/tls/certificate_watch.py",
    "common/walkeeper_common/shell/tls/credentials.py",
    "cli/walkeeper_cli/commands/standby_check.py",
    "cli/walkeeper_cli/commands/status.py",
    "cli/walkeeper_cli/history/stream.py",
    "cli/walkeeper_cli/history/stream_maintenance.py",
    "cli/walkeeper_cli/history/tail.py",
    "proposer/walkeeper_proposer/member_changes.py",
    "proposer/walkeeper_proposer/repairs.py",
    "admin/walkeeper_admin/switchover.py",
    "restore/walkeeper_restore/repeated_requests.py",
    "restore/walkeeper_restore/prefetching.py",
    "restore/walkeeper_restore/question_round.py",
    "common/walkeeper_common/shell/safekeeper_links/committed_wal.py",
    "restore/walkeeper_restore/spool.py",
    "cli/walkeeper_cli/snapshot/published_tables.py",
    "restore/walkeeper_restore/standby_check/data_directory.py",
    "restore/walkeeper_restore/standby_check/replayed_wal.py",
    "analysis/walkeeper_wal/sources/live.py",
    "analysis/walkeeper_replay/streams/one_stream.py",
    "analysis/walkeeper_wal/sources/safekeeper_link.py",
    "pager/walkeeper_pager/pager_daemon.py",
    "pager/walkeeper_pager/following.py",
    "pager/walkeeper_pager/pager.py",
    "common/walkeeper_common/shell/log_lines/operator_log.py",
    "common/walkeeper_common/shell/process/worker_thread.py",
    "proposer/walkeeper_proposer/proposer_daemon.py",
    "proposer/walkeeper_proposer/postgres/primary.py",
    "proposer/walkeeper_proposer/postgres/primary_retention.py",
    "proposer/walkeeper_proposer/reporting.py",
    "proposer/walkeeper_proposer/settling.py",
    "safekeeper/walkeeper_safekeeper/safekeeper_daemon.py",
    "safekeeper/walkeeper_safekeeper/hosting/log_catalog.py",
    "safekeeper/walkeeper_safekeeper/disk/disk_times.py",
    "proposer/walkeeper_proposer/postgres/commit_times.py",
    "admin/walkeeper_admin/status.py",
    "lab/walkeeper_lab/live_status.py",
    "admin/walkeeper_admin/check/certificates.py",
    "admin/walkeeper_admin/check/marker.py",
    "common/walkeeper_archive/sealing.py",
)
SCENARIO = re.compile(r"\bscenarios/[\w./-]+\.txt")
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


PRODUCT_FILES = python_files(*PRODUCT)
ALL_FILES = PRODUCT_FILES + python_files("tests")
COMPILED_FILES = [
    path
    for folder in PRODUCT
    for suffix in ("pyx", "pxi", "pxd")
    for path in sorted((ROOT / folder).rglob(f"*.{suffix}"))
]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def spells_out_buffer(node: ast.AST) -> bool:
    """Return True if the node is a union of bytes and memoryview."""
    names = set(ast.unparse(node).split(" | ")) if isinstance(node, ast.BinOp) else set()
    return {"bytes", "memoryview"} <= names


def test_bytes_that_are_passed_on_have_one_type() -> None:
    found = [
        shown(path)
        for path in PRODUCT_FILES
        if any(spells_out_buffer(node) for node in ast.walk(parsed(path)))
    ]
    assert found == ["common/walkeeper_common/buffers.py"], "take its Buffer"


def test_the_files_are_found() -> None:
    assert len(PRODUCT_FILES) > 40 and len(ALL_FILES) > len(PRODUCT_FILES) + 10
    assert {path.suffix for path in COMPILED_FILES} == {".pyx", ".pxi", ".pxd"}


def wrong_lines(path: Path) -> Iterator[str]:
    lines = path.read_text().splitlines()
    if len(lines) > FILE_LINES_MAX:
        yield f"{shown(path)}: {len(lines)} lines"
    for number, line in enumerate(lines, 1):
        if len(line) > COLUMNS_MAX:
            yield f"{shown(path)}:{number}: {len(line)} columns"
        if UNFINISHED.search(line):
            yield f"{shown(path)}:{number}: open an issue instead"
        if re.search(r"#{5}", line):
            yield f"{shown(path)}:{number}: no banners"


def test_a_file_has_one_idea() -> None:
    wrong = [text for path in ALL_FILES + COMPILED_FILES for text in wrong_lines(path)]
    assert not wrong, wrong


def test_a_function_fits_on_a_screen() -> None:
    long = [
        f"{shown(path)}:{function.lineno}: {function.name}"
        for path in ALL_FILES
        for function in functions(parsed(path))
        if (function.end_lineno or 0) - function.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert not long, long


def test_a_module_has_a_docstring() -> None:
    without = [shown(path) for path in PRODUCT_FILES if not ast.get_docstring(parsed(path))]
    assert not without, without


def test_only_the_command_line_prints() -> None:
    printed = [
        f"{shown(path)}:{node.lineno}"
        for path in PRODUCT_FILES
        if not shown(path).startswith("cli/")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    assert not printed, f"the log is for that: {printed}"


def test_a_function_that_may_do_nothing_says_when() -> None:
    vague = [
        f"{shown(path)}:{function.lineno}: {function.name}"
        for path in PRODUCT_FILES
        for function in functions(parsed(path))
        if function.name.startswith("maybe_")
    ]
    assert not vague, vague


def is_unrepeatable(node: ast.AST) -> bool:
    """Return True for a look at the clock, a draw, or an import of a name that does one."""
    if isinstance(node, ast.ImportFrom):
        return node.module in ("time", "random", "secrets", "uuid")
    if isinstance(node, ast.Attribute) and node.attr == "urandom":
        return True
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        called = node.func.value
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        return name in UNREPEATABLE_MODULES
    return False


def test_only_shells_look_at_the_clock_or_draw_lots() -> None:
    found = [
        f"{shown(path)}:{node.lineno}"
        for path in PRODUCT_FILES
        if shown(path) not in MAY_BE_UNREPEATABLE
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.stmt | ast.expr) and is_unrepeatable(node)
    ]
    assert not found, found


def test_every_shell_that_may_look_at_the_clock_exists() -> None:
    assert not [name for name in MAY_BE_UNREPEATABLE if not (ROOT / name).is_file()]


def test_the_files_of_the_one_java_machine_are_those_that_take_it() -> None:
    takers = [
        shown(path)
        for path in ALL_FILES
        if re.search(r"\(.*\bspark: |\bmark\.spark$", path.read_text(), re.MULTILINE)
    ]
    assert sorted(takers) == sorted(WITH_SPARK)
    assert not [name for name in SECONDS if not (ROOT / name).is_file()]


def test_a_name_says_something() -> None:
    assert not [shown(path) for path in ALL_FILES if path.stem in BANNED_NAMES]


def test_every_scenario_that_is_named_exists() -> None:
    missing = [
        f"{shown(path)}: {name}"
        for path in [*ALL_FILES, *sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]
        for name in SCENARIO.findall(path.read_text())
        if path != Path(__file__) and not (ROOT / "tests/consensus" / name).exists()
    ]
    assert not missing, missing


# Where Spark itself looks for the data source.
MAY_REEXPORT = ("spark/pyspark_pgwal/__init__.py",)


def test_packages_reexport_nothing() -> None:
    for path in PRODUCT_FILES:
        if path.name == "__init__.py" and shown(path) not in MAY_REEXPORT:
            body = ast.parse(path.read_text()).body
            assert len(body) <= 1, f"{shown(path)}: one import path per name"
