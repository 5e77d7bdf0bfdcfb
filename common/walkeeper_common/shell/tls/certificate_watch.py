"""A daemon's files with secrets while it runs: read again, and warned of before they end. A shell.

    read_again()              on SIGHUP
    await watch_files()       beside the daemon, until cancelled
    certificate_end_s()       for the metrics, or None without a TLS file

A process that serves no new connection would otherwise not see that its file has changed.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time

from walkeeper_common.shell.files.reloaded_file import watched_files
from walkeeper_common.shell.tls.own_credentials import own_credentials

logger = logging.getLogger("walkeeper.tls")

LOOK_S = 60.0
WARN_EACH_S = 86400.0


async def watch_files(*, look_s: float = LOOK_S, warn_each_s: float = WARN_EACH_S) -> None:
    """Look at the files each `look_s`; warn each `warn_each_s` while the certificate ends soon.

    Return at once if there is no file. A daemon opens its files before it sets up its log, so the
    first warning comes from here.
    """
    warned_s = -math.inf
    while files := watched_files():
        credentials = own_credentials()
        if credentials is not None and time.monotonic() - warned_s >= warn_each_s:
            credentials.warn_of_end()
            warned_s = time.monotonic()
        await asyncio.sleep(look_s)
        for file in files:
            file.reload()


def read_again() -> None:
    """Load each file again if it has changed, and log what was done."""
    files = watched_files()
    if not files:
        logger.info("received SIGHUP: nothing is read again; restart to change a setting")
    for file in files:
        logger.info("received SIGHUP: looking at the %s %s", file.what, file.path)
        file.reload()


def certificate_end_s() -> float | None:
    """Return the end of the certificate's validity in Unix time, or None without a TLS file."""
    credentials = own_credentials()
    return credentials.end_s if credentials is not None else None
