"""The parts that `demo` and `bench` share: an interruptible run and its setup. A shell."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine
from pathlib import Path

from walkeeper_common.shell.log_lines.operator_log import log_to_stderr

INTERRUPTED = 130


def forget_surroundings() -> None:
    """Remove PG* variables, and log errors alone.

    libpq would mix these variables into the connections of this process. The commands show killed
    processes in their own way, so that no log line has to.
    """
    for name in [name for name in os.environ if name.startswith("PG")]:
        del os.environ[name]
    log_to_stderr("ERROR")


def prepare(directory: Path) -> None:
    """Let PostgreSQL's user traverse the directory, and make `logs` in it.

    Files and folders inside have modes of their own.
    """
    if os.geteuid() == 0:
        directory.chmod(0o755)
    (directory / "logs").mkdir()


async def interruptible(work: Coroutine[object, object, None]) -> int:
    """Run `work` and return the exit code.

    Ctrl-C, SIGTERM and SIGHUP cancel `work`, so that it cleans up as after any error.
    """
    task = asyncio.create_task(work, name="run")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        return INTERRUPTED
    return 0
