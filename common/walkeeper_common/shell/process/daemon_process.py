"""The edges of every daemon: event loop, signals, readiness, systemd. A shell.

`run_daemon` returns the exit code: 0 after SIGTERM or SIGINT. Every expected error has one clear
line on stderr and the code of its class. A defect keeps its traceback.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import NoReturn

import uvloop

from walkeeper_common.errors import WalkeeperError
from walkeeper_common.shell.log_lines.operator_log import background_output, log_in_background
from walkeeper_common.shell.process.descriptors import take_descriptors
from walkeeper_common.shell.process.kept_heap import keep_heap
from walkeeper_common.shell.tls.certificate_watch import read_again, watch_files

logger = logging.getLogger("walkeeper")


def run_daemon(
    main: Callable[[], Coroutine[object, object, int]], *, log_level: str, log_json: bool = False
) -> int:
    """Run until `main` returns its exit code or a signal cancels it."""
    if not __debug__:
        sys.exit("the assertions are part of the protocol; do not use -O")
    log_in_background(log_level, as_json=log_json)
    keep_heap()
    try:
        take_descriptors()
        return uvloop.run(_with_signals(main))
    except WalkeeperError as error:
        return _end_by([error])
    except BaseExceptionGroup as group:
        expected, defects = group.split(WalkeeperError)
        if defects is not None:
            raise defects from None
        return _end_by(_leaves(expected))
    finally:
        background_output().flush()


def _end_by(errors: Sequence[WalkeeperError]) -> int:
    """Log the errors; return the greatest of their exit codes."""
    for error in errors:
        logger.critical("%s", error)
    return max(error.exit_code for error in errors)


async def _with_signals(main: Callable[[], Coroutine[object, object, int]]) -> int:
    task = asyncio.create_task(main(), name="main")
    stopping = False

    def stop(name: str) -> None:
        nonlocal stopping
        if not stopping:
            stopping = True
            logger.info("received %s, stopping", name)
            notify_systemd("STOPPING=1")
            task.cancel()

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_on_loop_error)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number.name)
    loop.add_signal_handler(signal.SIGHUP, read_again)
    for number in (signal.SIGUSR1, signal.SIGUSR2):  # by default each ends the process
        loop.add_signal_handler(number, logger.info, f"received {number.name}: nothing to do")
    watching = loop.create_task(watch_files(), name="watch the files")
    try:
        return await task
    except asyncio.CancelledError:
        if not stopping:
            raise
        return 0
    finally:
        watching.cancel()


def end_on_defect(error: BaseException) -> NoReturn:
    """End the process on a WorkerThread's defect, also an OSError that is no StorageError."""
    _end("a job of a worker failed", error)


def _on_loop_error(_loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    message, error = str(context.get("message")), context.get("exception")
    if _is_of_a_peer(context, error):
        logger.warning("%s: %s", message, error)
    else:
        _end(message, error if isinstance(error, BaseException) else None)


def _is_of_a_peer(context: dict[str, object], error: object) -> bool:
    """Return True for a connection's error, or a library's result that no caller awaits any more.

    An OSError of our own callback or task is none. It did not do its work, and no other part of
    the daemon would notice.
    """
    if isinstance(error, asyncio.CancelledError | ConnectionError | TimeoutError):
        return True
    future = context.get("future")
    if isinstance(future, asyncio.Future) and not isinstance(future, asyncio.Task):
        return isinstance(error, Exception) and not isinstance(error, AssertionError)
    return isinstance(error, OSError) and ("transport" in context or "socket" in context)


def _end(message: str, error: BaseException | None) -> NoReturn:
    """End the process at once: a clean stop would vouch for the state of a broken invariant."""
    logger.critical("defect: %s", message, exc_info=error)
    logging.shutdown()
    os._exit(1)


def announce_ready(what: str) -> None:
    """Print `ready: safekeeper 1 on 127.0.0.1:5454` on stdout and send READY=1 to systemd."""
    background_output().print(f"ready: {what}")
    notify_systemd("READY=1")


def notify_systemd(state: str) -> None:
    """Send one datagram as sd_notify(3) does, or none if NOTIFY_SOCKET is not set."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
        try:
            connection.connect("\0" + address[1:] if address[0] == "@" else address)
            connection.send(state.encode())
        except OSError as error:
            logger.warning("systemd could not be notified: %s", error)


def _leaves(group: BaseExceptionGroup[WalkeeperError] | None) -> list[WalkeeperError]:
    found: list[WalkeeperError] = []
    for error in group.exceptions if group else ():
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
