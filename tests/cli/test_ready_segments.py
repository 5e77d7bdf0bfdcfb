"""The script `walkeeper` takes a segment that is ready, and leaves all else to Python.

A stand-in for Python shows which. The prefetcher is the real one, without safekeepers.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.ready_prefetcher import FETCHED, MB, PLACED, segment
from tests.support.restore_installation import SCRIPTS
from tests.support.waiting import LIMIT_S, wait_until
from walkeeper_restore.ready_words import WORDS
from walkeeper_restore.spool import PART, SPOOL

FOUND, PYTHON = 0, 99
SYSTEM_ID = 7
OPTIONS = ("restore", "--safekeepers", "a:1,b:1")
TARGET = "pg_wal/RECOVERYXLOG"
NEXT = FETCHED[0]
SHELLS = [["sh"], ["bash", "--posix"], ["busybox", "sh"]]


class Server:
    """A data directory whose postmaster is this process, and a `walkeeper` without its Python."""

    def __init__(self, directory: Path) -> None:
        self.data, self.programs = directory / "data", directory / "bin"
        for folder in ("global", "pg_wal"):
            (self.data / folder).mkdir(parents=True)
        (self.data / "global" / "pg_control").write_bytes(struct.pack("=Q", SYSTEM_ID))
        self.start()
        self.programs.mkdir()
        shutil.copy(SCRIPTS / "walkeeper", self.programs)
        self.program("walkeeper-python", f"exit {PYTHON}")

    def start(self) -> None:
        """Make postmaster.pid as a postmaster does: a file that was not there before."""
        path = self.data / "postmaster.pid"
        path.unlink(missing_ok=True)
        path.write_text(f"{os.getpid()}\n{self.data}\n1700000000\n5432\n")

    def program(self, name: str, text: str) -> None:
        (self.programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.programs / name).chmod(0o755)

    @property
    def root(self) -> Path:
        return self.data / "pg_wal" / SPOOL

    @property
    def folder(self) -> Path:
        """The folder of the only prefetcher."""
        (folder,) = self.root.iterdir()
        return folder

    @property
    def prefetcher(self) -> int:
        return int(self.folder.suffix[1:])

    def prefetch(
        self,
        options: tuple[str, ...] = OPTIONS,
        variables: Mapping[str, str] | None = None,
        *,
        system_id: int = SYSTEM_ID,
        proof: str = "proven",
    ) -> None:
        """Start a prefetcher; it fetches all segments of FETCHED."""
        command = [sys.executable, "-m", "tests.support.ready_prefetcher", str(system_id), proof]
        environment = {**own_environment(), "PYTHONPATH": os.pathsep.join(sys.path)}
        subprocess.run(
            [*command, *options, PLACED, TARGET],
            cwd=self.data,
            env={**environment, **(variables or {})},
            check=True,
            timeout=LIMIT_S,
        )
        wait_until(self.root.exists)

    def fetched(self) -> list[str]:
        return sorted(path.name for path in self.root.glob("*/*") if path.name in FETCHED)

    def has_all(self) -> bool:
        return self.fetched() == FETCHED

    def restore(
        self,
        name: str = NEXT,
        path: str = TARGET,
        *,
        options: tuple[str, ...] = OPTIONS,
        shell: list[str] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> int:
        """Return the exit code of the script for these words."""
        command = [*(shell or []), str(self.programs / "walkeeper"), *options, name, path]
        environment = {**own_environment(), **(variables or {})}
        return subprocess.run(command, cwd=self.data, env=environment, timeout=LIMIT_S).returncode


def own_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if "WALKEEPER" not in name}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    for folder in server.root.glob("*"):
        with contextlib.suppress(ProcessLookupError, ValueError):
            os.kill(int(folder.suffix[1:]), signal.SIGTERM)


@pytest.fixture
def ready(server: Server) -> Server:
    """Return a server for which a prefetcher has all segments of FETCHED ready."""
    server.prefetch()
    wait_until(server.has_all)
    return server


@pytest.mark.parametrize("shell", SHELLS, ids=[words[0] for words in SHELLS])
def test_a_ready_segment_needs_no_python(ready: Server, shell: list[str]) -> None:
    if not shutil.which(shell[0]):
        pytest.skip(f"{shell[0]} is not installed")
    prefetcher = ready.prefetcher
    for number, name in enumerate(FETCHED, 4):
        assert ready.restore(name, shell=shell) == FOUND
        placed = ready.data / TARGET
        assert placed.read_bytes() == segment(number * MB, SYSTEM_ID)
        assert name not in ready.fetched()
        placed.unlink()
        assert ready.restore(name, shell=shell) == PYTHON, "it was there once"
    wait_until(lambda: not Path(f"/proc/{prefetcher}/fd/0").exists())


def test_a_segment_that_is_still_fetched_after_a_while_is_pythons(ready: Server) -> None:
    segment = ready.folder / NEXT
    part = segment.rename(segment.with_suffix(PART))
    assert ready.restore() == PYTHON and not (ready.data / TARGET).exists()
    part.unlink()
    assert ready.restore() == PYTHON


def test_a_segment_that_is_being_fetched_needs_no_python(ready: Server) -> None:
    segment = ready.folder / NEXT
    part = segment.rename(segment.with_suffix(PART))
    ready.program("sleep", f"exec mv {part} {segment}")
    assert ready.restore(variables={"PATH": f"{ready.programs}:{os.environ['PATH']}"}) == FOUND
    assert (ready.data / TARGET).exists()


def test_a_sleep_that_fails_is_pythons(ready: Server) -> None:
    segment = ready.folder / NEXT
    segment.rename(segment.with_suffix(PART))
    ready.program("sleep", "exit 1")
    assert ready.restore(variables={"PATH": str(ready.programs)}) == PYTHON


def test_without_a_prefetcher_all_segments_are_pythons(server: Server) -> None:
    assert server.restore() == PYTHON


@pytest.mark.parametrize(
    "options",
    [
        ("restore", "--safekeepers", "a:1,c:1"),
        ("restore", "--safekeepers"),
        ("restore", "--safekeepers", "a:1,b:1", "--no-partial"),
        ("restore", "--safekeepers", "a:1,b:1", ""),
        ("--log-level", "INFO", "restore", "--safekeepers", "a:1,b:1"),
        ("restore", "--safekeepers a:1,b:1"),
        ("restore\n--safekeepers", "a:1,b:1"),
        ("restore", "--safekeepers", "a:1,b:1\n"),
        ("restore", "--safekeepers", "?:1,b:1"),
        ("restore", "--safekeepers", " a:1,b:1"),
        ("restore",),
    ],
)
def test_another_command_line_is_pythons(ready: Server, options: tuple[str, ...]) -> None:
    assert ready.restore(options=options) == PYTHON
    assert ready.has_all()


def test_words_are_compared_as_they_are(server: Server) -> None:
    options = ("restore", "--archive", r"s3://b/\a \* $x `y` 'z' \"q\" ?[", "", " -n ", "!", "(")
    server.prefetch(options)
    wait_until(server.has_all)
    assert server.restore(options=options) == FOUND


@pytest.mark.parametrize("value", ["a\nb", "a\tb", "ä", "a\rb", "\x81"])
def test_unusual_words_are_pythons(server: Server, value: str) -> None:
    options = ("restore", "--archive", value)
    server.prefetch(options)
    wait_until(server.has_all)
    assert not (server.folder / WORDS).exists()
    assert server.restore(options=options) == PYTHON


def test_unusual_options_in_the_environment_are_pythons(server: Server) -> None:
    server.prefetch(variables={"WALKEEPER_TLS": "a\nrestore"})
    wait_until(server.has_all)
    assert not (server.folder / WORDS).exists()


def test_an_option_in_the_environment_makes_another_command_line(ready: Server) -> None:
    assert ready.restore(variables={"WALKEEPER_MIN_LSN": "0/1"}) == PYTHON
    assert ready.restore(variables={"WALKEEPER_TLS": ""}) == PYTHON
    assert ready.restore(variables={"OTHER": "a\nWALKEEPER_TLS=b"}) == PYTHON, "to be sure"
    assert ready.has_all()
    assert ready.restore(variables={"OTHER": "a\nb'c WALKEEPER"}) == FOUND


def test_options_in_the_environment_are_compared_as_they_are(server: Server) -> None:
    tls, wait = {"WALKEEPER_TLS": """/a 'b' "$c" \\ `d` *"""}, {"WALKEEPER_WAIT": "1min"}
    server.prefetch(variables=tls | wait)
    wait_until(server.has_all)
    changed, more = {"WALKEEPER_TLS": "/a"}, {"WALKEEPER_X": "1"}
    for variables in ({}, wait, tls, tls | wait | changed, tls | wait | more):
        assert server.restore(variables=variables) == PYTHON
    assert server.has_all()
    assert server.restore(variables=tls | wait) == FOUND


def test_a_start_that_owes_its_proof_is_pythons(server: Server) -> None:
    """R23: an earlier start of this server fetched them, or none has proved its branch."""
    server.prefetch(proof="owed")
    wait_until(server.has_all)
    assert server.restore() == PYTHON


def test_each_start_proves_its_branch_anew(ready: Server) -> None:
    """Also one with the pid and the time of the start before, as in a container."""
    ready.start()
    assert ready.restore() == PYTHON
    (ready.data / "postmaster.pid").unlink()
    assert ready.restore() == PYTHON
    assert ready.has_all()


def test_a_server_that_goes_meanwhile_gets_no_segment(ready: Server) -> None:
    """Its next start may wait for another one at the same place."""
    segment = ready.folder / NEXT
    part = segment.rename(segment.with_suffix(PART))
    ready.program("sleep", f"rm {ready.data}/postmaster.pid; exec mv {part} {segment}")
    assert ready.restore(variables={"PATH": f"{ready.programs}:{os.environ['PATH']}"}) == PYTHON
    assert not (ready.data / TARGET).exists()


def test_segments_of_a_dead_prefetcher_are_pythons(ready: Server) -> None:
    prefetcher = ready.prefetcher
    os.kill(prefetcher, signal.SIGKILL)
    wait_until(lambda: not os.path.exists(f"/proc/{prefetcher}/fd/0"))
    assert ready.restore() == PYTHON
    assert ready.has_all()


def test_a_segment_of_another_cluster_gets_no_name(server: Server) -> None:
    server.prefetch(system_id=8)
    wait_until(lambda: not list(server.root.iterdir()))


@pytest.mark.parametrize("name", [WORDS, f"{NEXT}{PART}", NEXT[:-1] + "?", "", f"./{NEXT}", "x y"])
def test_other_names_are_pythons(ready: Server, name: str) -> None:
    (ready.folder / f"{NEXT}{PART}").write_bytes(b"")
    (ready.folder / "x y").write_bytes(b"")
    assert ready.restore(name) == PYTHON
    assert ready.has_all() and not (ready.data / TARGET).exists()


def test_nothing_is_overwritten(ready: Server) -> None:
    target = ready.data / TARGET
    target.write_bytes(b"other")
    assert ready.restore() == PYTHON and target.read_bytes() == b"other"
    target.unlink()
    target.mkdir()
    assert ready.restore() == PYTHON and not list(target.iterdir())
    assert ready.has_all()


@pytest.mark.parametrize("text", ["exit 1", "exit 2", "kill -9 $$", None])
def test_a_mv_that_fails_is_no_verdict(ready: Server, text: str | None) -> None:
    if text is not None:
        ready.program("mv", text)
    assert ready.restore(variables={"PATH": str(ready.programs)}) == PYTHON
    assert ready.restore(path="pg_wal/none/RECOVERYXLOG") == PYTHON
    assert ready.has_all()


def test_a_spool_on_another_file_system_is_pythons(server: Server) -> None:
    """`mv` would copy."""
    other = Path("/dev/shm") / f"walkeeper_test_{os.getpid()}"
    other.mkdir()
    try:
        if other.stat().st_dev == server.data.stat().st_dev:
            pytest.skip("there is only one file system")
        server.root.symlink_to(other)
        server.prefetch()
        wait_until(server.has_all)
        assert server.restore() == PYTHON
    finally:
        shutil.rmtree(other)


def test_closed_standard_streams_do_not_matter(ready: Server) -> None:
    words = " ".join([str(ready.programs / "walkeeper"), *OPTIONS, NEXT, TARGET])
    command = ["sh", "-c", f"{words} <&- >&- 2>&-"]
    assert subprocess.run(command, cwd=ready.data, env=own_environment()).returncode == FOUND
