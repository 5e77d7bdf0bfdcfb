"""A Python that has imported a command, and forks: each process of a test then starts at once.

    python -m tests.support.fork_server DOOR MODULE FAMILY

A new Python takes a third of a second to import a daemon's modules. The four daemons of a cluster
took three quarters of its processor time. This program imports the modules once. Then it forks for
each request, and the child becomes `python -m MODULE WORDS…`. The other side is forked.py.

One program makes the processes of a family of commands. Each daemon is a family of its own, as its
memory should not have the modules of others. `walkeeper restore` starts as PostgreSQL starts it.

DOOR is the number of a socket. A request is a Request as JSON, with three descriptors: stdout,
stderr and a pipe. The program writes the child's pid into the pipe, and later its exit status. Each
is a signed number of 8 bytes. The program ends when the socket's other end is closed.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from typing import NamedTuple

NUMBER = struct.Struct("!q")
REQUEST_BYTES_MAX = 1 << 17
PASSED = 3  # descriptors of a request
# The command that each family is named after, and the modules that it imports only when it runs.
LATER = {
    "safekeeper": (
        "walkeeper_safekeeper.safekeeper_daemon",
        "walkeeper_safekeeper.safekeeper_settings",
        "psycopg",
    ),
    "proposer": (
        "walkeeper_proposer.proposer_daemon",
        "walkeeper_proposer.proposer_settings",
        "asyncpg",
    ),
    "settle": (
        "walkeeper_admin.archive_status",
        "walkeeper_admin.check.all_checks",
        "walkeeper_admin.closed_start",
        "walkeeper_admin.create",
        "walkeeper_admin.gated_server",
        "walkeeper_admin.logs",
        "walkeeper_admin.primary.attach",
        "walkeeper_admin.primary.detach",
        "walkeeper_admin.replace",
        "walkeeper_admin.replaying",
        "walkeeper_admin.slots",
        "walkeeper_admin.switchover",
        "walkeeper_proposer.settling",
        "walkeeper_restore.standby_check.checking",
    ),
}
# Commands of an operator, which take less time than their imports.
OPERATORS = (
    *("attach", "check", "create", "detach", "gate", "logs", "members", "replace", "settle"),
    *("slots", "spare", "standby-check", "status", "switchover"),
)
FAMILIES = {name: name for name in LATER} | dict.fromkeys(OPERATORS, "settle")


class Request(NamedTuple):
    """The words after MODULE, the environment and the working directory of a child."""

    words: Sequence[str]
    environment: dict[str, str]
    directory: str


def load(module: str, family: str) -> None:
    """Import what `python -m MODULE COMMAND` will import, for each command of the family."""
    package = module.removesuffix(".__main__")
    importlib.import_module(f"{package}.program" if package == "walkeeper_cli" else package)
    commands = [name.replace("-", "_") for name in FAMILIES if FAMILIES[name] == family]
    names = [f"walkeeper_cli.commands.{command}" for command in commands]
    for name in ("uvloop", *names, *LATER[family]):
        importlib.import_module(name)


def serve(door: socket.socket) -> Request | None:
    """Fork for each request. Return it in the child; return None at the end of all requests."""
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the children too
    woken, waking = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(waking, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waking)
    pipes = dict[int, int]()
    while True:
        ready, _, _ = select.select([door.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _tell_ends(pipes)
            continue
        data, passed, _, _ = socket.recv_fds(door, REQUEST_BYTES_MAX, PASSED)
        if not data:
            return None
        output, errors, pipe = passed
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, interrupt)
            _take(output, errors)
            door.detach()
            return Request(*json.loads(data))
        os.close(output)
        os.close(errors)
        pipes[pid] = pipe
        _tell(pipe, pid)


def _take(output: int, errors: int) -> None:
    """Make these the child's standard streams, and close all other descriptors."""
    os.dup2(output, 1)
    os.dup2(errors, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))


def _tell_ends(pipes: dict[int, int]) -> None:
    """Write the exit statuses of the children that have ended."""
    while pipes:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        _tell(pipes[pid], os.waitstatus_to_exitcode(status))
        os.close(pipes.pop(pid))


def _tell(pipe: int, number: int) -> None:
    try:
        os.write(pipe, NUMBER.pack(number))
    except BrokenPipeError:  # the test has gone
        return


def main() -> None:
    module, family = sys.argv[2], sys.argv[3]
    load(module, family)
    gc.collect()
    gc.freeze()
    request = serve(socket.socket(fileno=int(sys.argv[1])))
    if request is None:
        return
    os.environ.clear()
    os.environ.update(request.environment)
    os.chdir(request.directory)
    sys.argv[1:] = request.words
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
