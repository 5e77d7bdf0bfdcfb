"""Processes that start by a fork of a Python that has imported their command, see fork_server.py.

    starts_by_fork(module, words, environment)      False: start a new Python instead
    start(module, words, environment, output, errors)      a ForkedProcess
    run(module, words, environment, timeout_s)      to its end, as subprocess.run

The process is the one that `python -m MODULE WORDS…` would be. A fork cannot stand for it where an
import, Python itself or the loader reads another environment. With WALKEEPER_TEST_FORKS=off, no
process starts by a fork.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from threading import Lock

from tests.support import fork_server
from tests.support.folders import ROOT
from tests.support.fork_server import FAMILIES, NUMBER, Request
from walkeeper_fastpath.switch import VARIABLE

SWITCH = "WALKEEPER_TEST_FORKS"
# Beginnings of variables' names that only a new process reads.
READ_AT_THE_START = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", VARIABLE)
_servers = dict[tuple[str, str], socket.socket]()
_lock = Lock()


class ForkedProcess:
    """The part of subprocess.Popen that tests use."""

    def __init__(self, pid: int, pipe: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._pipe, self._lock = pipe, Lock()
        self._close = weakref.finalize(self, os.close, pipe)

    def poll(self) -> int | None:
        """Return the exit status as Popen does, or None while the process runs."""
        return self._read(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status once there is one; raise subprocess.TimeoutExpired."""
        code = self._read(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def _read(self, timeout: float | None) -> int | None:
        with self._lock:
            if self.returncode is None and select.select([self._pipe], [], [], timeout)[0]:
                data = os.read(self._pipe, NUMBER.size)
                assert data, "the fork server has ended"
                (self.returncode,) = NUMBER.unpack(data)
                self._close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


Process = subprocess.Popen[bytes] | ForkedProcess


def starts_by_fork(module: str, words: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Return True if `python -m MODULE WORDS…` would be the same process by a fork."""
    if os.environ.get(SWITCH) == "off" or not words or words[0] not in FAMILIES:
        return False
    return _read_at_the_start(environment) == _read_at_the_start(os.environ)


def _read_at_the_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in environment.items() if name.startswith(READ_AT_THE_START)
    }


def start(
    module: str, words: Sequence[str], environment: Mapping[str, str], output: int, errors: int
) -> ForkedProcess:
    """Start `python -m MODULE WORDS…` with these descriptors as stdout and stderr."""
    reading, writing = os.pipe()
    try:
        data = json.dumps(Request(words, dict(environment), os.getcwd())).encode()
        socket.send_fds(_server(module, FAMILIES[words[0]]), [data], [output, errors, writing])
    finally:
        os.close(writing)
    number = os.read(reading, NUMBER.size)
    assert number, "the fork server has ended"
    return ForkedProcess(NUMBER.unpack(number)[0], reading)


def run(
    module: str, words: Sequence[str], environment: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run `python -m MODULE WORDS…` to its end, as subprocess.run does with captured text."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = start(module, words, environment, output.fileno(), errors.fileno())
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        output.seek(0)
        errors.seek(0)
        texts = output.read().decode(), errors.read().decode()
    return subprocess.CompletedProcess([module, *words], code, *texts)


def _server(module: str, family: str) -> socket.socket:
    """Return the door of this process's server for the family, which it starts if need be."""
    with _lock:
        if (module, family) not in _servers:
            ours, door = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with door:
                number = str(door.fileno())
                server = subprocess.Popen(
                    [sys.executable, "-m", fork_server.__name__, number, module, family],
                    cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                    pass_fds=[door.fileno()],
                )  # fmt: skip
            _servers[module, family] = ours
            atexit.register(_end, server, ours)
        return _servers[module, family]


def _end(server: subprocess.Popen[bytes], ours: socket.socket) -> None:
    ours.close()
    server.wait()
