"""A process that starts by a fork is the one that a new Python would be."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import forked
from tests.support.cluster import WALKEEPER, Daemon
from tests.support.postgres_server import server_environment
from tests.support.waiting import LIMIT_S, wait_until
from walkeeper_lab.local.tcp_ports import free_port

MODULE = WALKEEPER[-1]


class NewPython(Daemon):
    """A daemon that never starts by a fork."""

    command = (sys.executable, "-u", *WALKEEPER[1:])


def safekeeper(kind: type[Daemon], directory: Path, **environment: str) -> Daemon:
    where = ("--data-dir", str(directory / "data"), "--listen", f"127.0.0.1:{free_port()}")
    directory.mkdir()
    return kind("safekeeper", ("safekeeper", *where), directory / "log", environment=environment)


NOBODY = ("--safekeepers", "127.0.0.1:1")
SAID = [
    *[("safekeeper", "--help"), ("attach", "--bogus"), ("proposer",), ("standby-check", "-D", "/")],
    *[("settle", "--help"), ("status", *NOBODY), ("members", *NOBODY)],
]


@pytest.mark.parametrize("words", SAID)
def test_a_command_says_the_same_and_ends_with_the_same_code(words: tuple[str, ...]) -> None:
    environment = server_environment()
    assert forked.starts_by_fork(MODULE, words, environment)
    new = subprocess.run(
        [*WALKEEPER, *words], env=environment, capture_output=True, text=True, timeout=LIMIT_S
    )
    ours = forked.run(MODULE, words, environment, LIMIT_S)
    assert (ours.returncode, ours.stdout, ours.stderr) == (new.returncode, new.stdout, new.stderr)


def facts_of(daemon: Daemon) -> tuple[object, ...]:
    """Return the number of descriptors, the kinds of those that are no files, and the threads."""
    folder, links = Path(f"/proc/{daemon.pid}"), list[str]()
    for path in folder.joinpath("fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            links.append(os.readlink(path))
    kinds = sorted(link.split(":")[0] for link in links if link[0] != "/")
    status = dict(line.split(":\t") for line in (folder / "status").read_text().splitlines())
    wanted = [status[name] for name in ("Threads", "SigBlk", "SigIgn", "SigCgt")]
    return len(links), kinds, wanted


def test_a_daemon_has_the_descriptors_threads_and_environment_of_a_new_one(tmp_path: Path) -> None:
    made = [safekeeper(kind, tmp_path / kind.__name__, WALKEEPER_ID="7", X="y")
            for kind in (Daemon, NewPython)]  # fmt: skip
    for daemon in made:
        daemon.start()
        assert isinstance(daemon.process, forked.ForkedProcess) is (type(daemon) is Daemon)
        assert "safekeeper 7 " in daemon.output()
    first, other = made
    # Each opens its last descriptors after the line that says it is ready.
    wait_until(lambda: facts_of(first) == facts_of(other))
    for daemon in made:
        assert daemon.terminate() == 0


def test_a_killed_process_has_its_signal_as_exit_code(tmp_path: Path) -> None:
    daemon = safekeeper(Daemon, tmp_path / "here", WALKEEPER_ID="1")
    daemon.start()
    assert daemon.process is not None and daemon.process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        daemon.process.wait(0.0)
    daemon.kill()
    assert daemon.process.wait() == daemon.process.poll() == -signal.SIGKILL
    daemon.kill()  # as with Popen, nothing happens
    wait_until(lambda: not Path(f"/proc/{daemon.pid}").exists())


@pytest.mark.parametrize("name", ["PYTHONOPTIMIZE", "LD_PRELOAD", "WALKEEPER_FAST_PATH"])
def test_a_variable_that_an_import_reads_takes_a_new_python(name: str) -> None:
    environment = server_environment() | {name: "off"}
    assert not forked.starts_by_fork(MODULE, ("safekeeper",), environment)


def test_a_command_that_is_not_imported_takes_a_new_python(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not forked.starts_by_fork(MODULE, ("demo",), server_environment())
    assert not forked.starts_by_fork(MODULE, (), server_environment())
    monkeypatch.setenv(forked.SWITCH, "off")
    assert not forked.starts_by_fork(MODULE, ("safekeeper",), server_environment())
