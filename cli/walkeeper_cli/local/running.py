"""What `demo` and `bench` share: a run from nothing to nothing that can be interrupted. A shell."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine
from pathlib import Path

from walkeeper_common.shell.logs import log_to_stderr

INTERRUPTED = 130


def forget_surroundings() -> None:
    """libpq would mix PG* variables into what we connect to; what is killed is shown otherwise."""
    for name in [name for name in os.environ if name.startswith("PG")]:
        del os.environ[name]
    log_to_stderr("ERROR")


def prepare(directory: Path) -> None:
    """PostgreSQL's user may traverse it; what is inside has modes of its own."""
    if os.geteuid() == 0:
        directory.chmod(0o755)
    (directory / "logs").mkdir()


async def interruptible(work: Coroutine[object, object, None]) -> int:
    """The exit code. Ctrl-C and SIGTERM end `work` as any error would, cleaned up."""
    task = asyncio.create_task(work, name="run")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        return INTERRUPTED
    return 0
