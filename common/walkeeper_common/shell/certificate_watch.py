"""A daemon's own certificate while it runs: read again, and warned of before it ends. A shell.

    read_again()              on SIGHUP
    await watch_certificate() beside the daemon, until cancelled
    certificate_end_s()       for the metrics, or None without a TLS file

A process that serves no new connection would otherwise not see that its file has changed.
"""

from __future__ import annotations

import asyncio
import logging
import time

from walkeeper_common.shell.own_credentials import own_credentials

logger = logging.getLogger("walkeeper.tls")

LOOK_S = 60.0
WARN_EACH_S = 86400.0


async def watch_certificate(*, look_s: float = LOOK_S, warn_each_s: float = WARN_EACH_S) -> None:
    """Look at the file each `look_s`; warn each `warn_each_s` while its certificate ends soon."""
    warned_s = time.monotonic()  # its load has warned
    while (credentials := own_credentials()) is not None:
        await asyncio.sleep(look_s)
        credentials.reload()
        if time.monotonic() - warned_s >= warn_each_s:
            credentials.warn_of_end()
            warned_s = time.monotonic()


def read_again() -> None:
    """Load the TLS file again if it has changed, and log what was done."""
    credentials = own_credentials()
    if credentials is None:
        logger.info("received SIGHUP: nothing is read again; restart to change a setting")
        return
    logger.info("received SIGHUP: looking at the TLS file %s", credentials.path)
    credentials.reload()


def certificate_end_s() -> float | None:
    """Return the end of the certificate's validity in Unix time, or None without a TLS file."""
    credentials = own_credentials()
    return credentials.end_s if credentials is not None else None
