"""A daemon's output and its readers: no reader that is too slow, or gone, holds it up.

The daemons here are processes, and what they write to is a pipe of one page.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.waiting import LIMIT_S, wait_until
from walkeeper_common.shell.log_lines.operator_log import (
    LINES_MAX,
    REMEMBERED_MAX,
    REPEATS_MAX,
    BackgroundOutput,
    Repetitions,
    alike,
)
from walkeeper_lab.local.tcp_ports import free_port

F_SETPIPE_SZ = 1031  # fcntl has it on Linux alone
PIPE_BYTES = 4096
TALKATIVE = """
import asyncio, logging, sys
from pathlib import Path
from walkeeper_common.shell.process.daemon_process import announce_ready, run_daemon
from walkeeper_common.errors import Refused

async def main():
    for number in range({lines}):
        logging.info("line %d", number)
    announce_ready("talkative")
    Path({said!r}).touch()
    await asyncio.to_thread(sys.stdin.readline)
    {end}

raise SystemExit(run_daemon(main, log_level="INFO"))
"""


@contextlib.contextmanager
def small_pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    fcntl.fcntl(writing, F_SETPIPE_SZ, PIPE_BYTES)
    try:
        yield reading, writing
    finally:
        os.close(reading)
        with contextlib.suppress(OSError):
            os.close(writing)


@contextlib.contextmanager
def running(command: list[str], output: int) -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output)
    with started as process:
        try:
            yield process
        finally:
            process.kill()


def go_on(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()


def talkative(said: Path, *, lines: int, end: str) -> list[str]:
    return [sys.executable, "-c", TALKATIVE.format(lines=lines, said=str(said), end=end)]


def read_all(reading: int) -> list[str]:
    """Read lines until the other end is closed."""
    with os.fdopen(os.dup(reading), encoding="utf-8") as file:
        return file.read().splitlines()


def get(port: int, path: str) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
        client.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        return client.recv(4096)


def test_a_safekeeper_whose_output_nobody_reads_serves_and_stops(tmp_path: Path) -> None:
    port, http = free_port(), free_port()
    where = ("--id", "1", "--data-dir", str(tmp_path / "sk"), "--listen", f"127.0.0.1:{port}")
    words = ("safekeeper", *where, "--http", f"127.0.0.1:{http}")
    command = [sys.executable, "-m", "walkeeper_cli", *words]

    def is_listening() -> bool:  # HTTP first, then its port
        with contextlib.suppress(OSError):
            get(port, "/")
            return b" 200 " in get(http, "/health")
        return False

    with small_pipe() as (_, writing), running(command, writing) as process:
        wait_until(is_listening)
        for _ in range(PIPE_BYTES // 40):  # a line of the log each
            get(port, "/")
        assert b" 200 " in get(http, "/health")
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0


def test_a_reader_that_comes_back_gets_the_lines_in_order_and_how_many_are_missing(
    tmp_path: Path,
) -> None:
    lines, said = 2 * LINES_MAX + 1000, tmp_path / "said"
    command = talkative(said, lines=lines, end="raise Refused('for good')")
    with small_pipe() as (reading, writing), running(command, writing) as process:
        os.close(writing)
        wait_until(said.exists)  # it went on meanwhile
        go_on(process)
        heard = read_all(reading)
        assert process.wait(LIMIT_S) == 1
    numbers = [int(line.split()[-1]) for line in heard if "LOG:  line " in line]
    assert numbers == list(range(len(numbers)))
    told = [re.search(r"WARNING:  (\d+) lines? (?:was|were) not logged", line) for line in heard]
    missing = [int(found[1]) for found in told if found]
    assert len(numbers) + sum(missing) == lines and len(missing) == 1
    assert "ready: talkative" in heard
    assert "FATAL:  for good" in heard[-1]


@pytest.mark.parametrize(
    "end",
    [
        "return 1",
        "raise AssertionError('defect')",
        "asyncio.get_running_loop().call_soon(int, 'defect'); await asyncio.sleep(9)",
    ],
    ids=["a return", "an exception", "a defect of a callback"],
)
def test_no_line_of_a_daemon_that_ends_is_missing_or_out_of_order(end: str, tmp_path: Path) -> None:
    lines = 500
    command = talkative(tmp_path / "said", lines=lines, end=end)
    with small_pipe() as (reading, writing), running(command, writing) as process:
        os.close(writing)
        go_on(process)
        heard = read_all(reading)
        assert process.wait(LIMIT_S) == 1
    assert [int(line.split()[-1]) for line in heard[:lines]] == list(range(lines))
    assert heard[lines] == "ready: talkative"
    assert ("defect" in heard[-1]) == ("defect" in end), heard[-1]


def test_a_daemon_whose_defect_nobody_reads_ends(tmp_path: Path) -> None:
    command = talkative(tmp_path / "said", lines=200, end="raise AssertionError('defect')")
    with small_pipe() as (_, writing), running(command, writing) as process:
        go_on(process)
        assert process.wait(LIMIT_S) == 1


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_end_no_daemon_and_are_no_file_of_it(
    closed: str, tmp_path: Path
) -> None:
    data, port = tmp_path / "sk", free_port()
    words = f"safekeeper --id 1 --data-dir {data} --listen 127.0.0.1:{port} {closed}"
    command = ["sh", "-c", f"exec {sys.executable} -m walkeeper_cli {words}"]

    def is_listening() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5):
            return True
        return False

    with running(command, subprocess.DEVNULL) as process:
        wait_until(is_listening)
        first = {os.readlink(f"/proc/{process.pid}/fd/{number}") for number in range(3)}
        assert not [name for name in first if str(data) in name or "eventpoll" in name], first
        for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):  # none ends it
            process.send_signal(number)
            time.sleep(0.1)
            assert process.poll() is None, number
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0


def test_a_repeated_message_is_logged_once_a_minute() -> None:
    repetitions, heard = Repetitions(), []
    for second in range(150):
        for line in ("following 12", "no WAL taken"):
            heard.append((second, repetitions.passed(line, 1000.0 + second)))
    heard.append((150, repetitions.passed("following 13", 1150.0)))
    heard.append((300, repetitions.passed("no WAL taken", 1300.0)))
    heard.append((301, repetitions.passed("no WAL taken", 1301.0)))
    said = [(second, line) for second, line in heard if line is not None]
    held_back = 60 - REPEATS_MAX, 59
    assert [line for line in said if "12" not in line[1]] == [
        (0, "no WAL taken"),
        (1, "no WAL taken"),
        (2, "no WAL taken (again; from here on once a minute)"),
        (60, f"no WAL taken ({held_back[0]} times more since the last such line)"),
        (120, f"no WAL taken ({held_back[1]} times more since the last such line)"),
        (150, "following 13"),
        (300, "no WAL taken (29 times more since the last such line)"),
    ]


def test_lines_of_one_kind_count_as_the_same_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood wrote one line for each of its connections, as each has another port."""
    output, written = BackgroundOutput(), list[str]()
    monkeypatch.setattr(output, "_append", lambda _, line: written.append(line))
    for port in range(50):
        for kind in ("closed", "refused"):
            record = logging.LogRecord("", logging.INFO, "", 0, f"{kind} {port}", None, None)
            vars(record).update(alike(kind))
            output.emit(record)
    assert [line.partition(":  ")[2] for line in written] == [
        *("closed 0", "refused 0", "closed 1", "refused 1"),
        "closed 2 (again; from here on once a minute)",
        "refused 2 (again; from here on once a minute)",
    ]


def test_lines_that_are_all_different_all_pass_and_are_not_remembered_for_ever() -> None:
    repetitions = Repetitions()
    for _ in range(2 * REPEATS_MAX):
        for number in range(REMEMBERED_MAX + 1):
            assert repetitions.passed(f"line {number}", 1000.0) == f"line {number}"
    assert len(repetitions._lines) == REMEMBERED_MAX
