"""A command's work goes on when nobody reads its report, and the end says so."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.attach_stage import Walkeeper, auto_conf, proposer, server, walkeeper
from tests.support.postgres_server import PostgresServer
from tests.support.waiting import LIMIT_S

__all__ = ["server", "walkeeper"]
FULL = Path("/dev/full")
NO_STDOUT = -100  # not one of subprocess's
CLOSED = "walkeeper: error: stdout is closed: the answer cannot be written"


@contextlib.contextmanager
def unread(kind: str) -> Iterator[int]:
    """Open a descriptor that no byte can be written to, or none."""
    if kind == "closed":
        yield NO_STDOUT
        return
    if kind == "full":
        if not FULL.exists():
            pytest.skip("this system has no /dev/full")
        writing = os.open(FULL, os.O_WRONLY)
    else:
        reading, writing = os.pipe()
        os.close(reading)
    try:
        yield writing
    finally:
        os.close(writing)


def run(*arguments: str, stdout: int, stderr: int = subprocess.PIPE) -> tuple[int, str]:
    """Return the exit code and the text on stderr."""
    command = [sys.executable, "-m", "walkeeper_cli", *arguments]
    if stdout == NO_STDOUT:
        command, stdout = ["sh", "-c", '"$@" >&-', "sh", *command], subprocess.PIPE
    done = subprocess.run(command, stdout=stdout, stderr=stderr, text=True, timeout=LIMIT_S)
    return done.returncode, done.stderr


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("gone", ""),
        ("full", "walkeeper: error: <stdout>: No space left on device\n"),
        ("closed", f"{CLOSED}\n"),
    ],
)
def test_detach_does_all_its_work_without_a_reader(
    server: PostgresServer, walkeeper: Walkeeper, kind: str, said: str
) -> None:
    with proposer(server), unread(kind) as output:
        assert walkeeper("attach", "--dsn", server.dsn()).code == 0
        done = run("detach", "--drop-slot", "--dsn", server.dsn(), stdout=output)
        assert done == (1, said)
    assert "synchronous_standby_names" not in auto_conf(server)
    assert server.sql("SELECT count(*) FROM pg_replication_slots") == 0


@pytest.mark.postgres
@pytest.mark.parametrize("kind", ["gone", "full"])
def test_attach_needs_nobody_who_reads_its_warnings(server: PostgresServer, kind: str) -> None:
    """wal_keep_size is the subject of one."""
    with proposer(server), unread(kind) as output:
        code, _ = run("attach", "--dsn", server.dsn(), stdout=subprocess.DEVNULL, stderr=output)
        assert code == 0
        assert server.sql("SHOW synchronous_standby_names") == "FIRST 1 (walkeeper)"


WRITES_ROWS = """
import sys
from types import SimpleNamespace
from walkeeper_cli.history import replay_commands as history_past
from walkeeper_cli.program import cli, main

@cli.command("rows")
def rows():
    with history_past.written(SimpleNamespace(output=None), binary={binary}) as file:
        file.write({binary} and b"rows" or "rows")

cli.get_command = lambda context, name: rows
sys.argv[1:] = ["rows"]
main()
"""


@pytest.mark.parametrize(
    "words",
    [
        ("-m", "walkeeper_cli", "--version"),
        ("-m", "walkeeper_cli", "attach", "--help"),
        ("-m", "walkeeper_cli", "status", "--json", "--safekeepers", "127.0.0.1:1"),
        ("-c", WRITES_ROWS.format(binary=False)),
        ("-c", WRITES_ROWS.format(binary=True)),
    ],
    ids=["version", "help", "status", "rows", "Parquet"],
)
def test_an_answer_without_a_stdout_is_a_failure(words: tuple[str, ...]) -> None:
    """Some programs start others without a stdout."""
    command = ["sh", "-c", '"$@" >&-', "sh", sys.executable, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert (done.returncode, done.stderr) == (1, f"{CLOSED}\n")


def test_characters_that_a_locale_lacks_are_escapes_and_foreign_bytes_stay_as_they_are() -> None:
    say = "import os; from walkeeper_common.shell.process.command_output import prepare_stdout; "
    say += "prepare_stdout(); "
    say += "print(os.fsdecode(b'D\\xf6rf'), '\\u2603')"
    shown = {"utf-8": b"D\xf6rf \xe2\x98\x83\n", "iso8859-1": b"D\\udcf6rf \\u2603\n"}
    for encoding, expected in shown.items():
        environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "1"}
        command = [sys.executable, "-c", say]
        done = subprocess.run(command, env=environment, capture_output=True, timeout=LIMIT_S)
        assert done.stdout == expected, (encoding, done)
    help_ = [sys.executable, "-m", "walkeeper_cli", "--help"]
    done = subprocess.run(help_, env=environment, capture_output=True, timeout=LIMIT_S)
    assert done.returncode == 0 and b"--listen 10.0.0.1:5454 \\u2026" in done.stdout, done
