"""The safekeeper daemon: claims its directory, opens its logs, listens, stops cleanly."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from functools import partial

from walkeeper_archive.open_store import open_store
from walkeeper_common.addresses import refuse_open_door, shown_address
from walkeeper_common.errors import RemoteProtocolError
from walkeeper_common.shell.audit import Audit
from walkeeper_common.shell.daemon_process import announce_ready, end_on_defect, run_daemon
from walkeeper_common.shell.descriptors import connections_allowed
from walkeeper_safekeeper.connection_limits import Limits
from walkeeper_safekeeper.disk.real_disk import claim_data_directory
from walkeeper_safekeeper.log_catalog import LogCatalog
from walkeeper_safekeeper.proposer_door import ProposerDoor
from walkeeper_safekeeper.server import CLIENTS_MAX, UNDECIDED_MAX, serve
from walkeeper_safekeeper.settings import SafekeeperSettings

logger = logging.getLogger("walkeeper.safekeeper")

# With clients, those of --http and connections that say nothing below 1,000: descriptors.py.
PROPOSERS_MAX = 400
RESERVED_SHARE = 10  # one place of so many is left to commands and to the leader


def run(settings: SafekeeperSettings) -> int:
    """Run the daemon; return the exit code."""
    return run_daemon(
        lambda: _main(settings), log_level=settings.log_level, log_json=settings.log_json
    )


async def _main(settings: SafekeeperSettings) -> int:
    _refuse_open_door(settings)
    claimed = claim_data_directory(settings.data_dir, settings.acceptor_id)
    try:
        async with asyncio.TaskGroup() as group:
            await _serve(settings, group)
    finally:
        claimed.release()
    return 0


async def _serve(settings: SafekeeperSettings, group: asyncio.TaskGroup) -> None:
    if settings.archive is not None:
        open_store(settings.archive.url)  # raises Refused before a port is open
    catalog = LogCatalog(settings, group, end_on_defect)
    audit = Audit(as_json=settings.audit_json)
    door = ProposerDoor(proposer_limits(), catalog, partial(start_in, group), audit)

    def on_ready(host: str, port: int) -> None:
        announce_ready(f"safekeeper {settings.acceptor_id} on {shown_address((host, port))}")

    try:
        await catalog.open_all()
        group.create_task(door.run(), name="silent connections")
        group.create_task(catalog.space.run(), name="disk space")
        if settings.http is not None:
            listening = asyncio.Event()
            serving = _serve_http(settings, catalog, audit, lambda *_: listening.set())
            group.create_task(serving, name="http")
            await listening.wait()  # ready is both
        await serve(
            settings.listen[0],
            settings.listen[1],
            catalog=catalog,
            proposer_handler=door,
            now=time.time,
            on_ready=on_ready,
            audit=audit,
            clients_max=connections_allowed(CLIENTS_MAX),
            undecided_max=connections_allowed(UNDECIDED_MAX),
        )
    finally:
        await catalog.close()


def proposer_limits() -> Limits:
    """Return the bounds on connections of proposers and commands in this process."""
    places_max = connections_allowed(PROPOSERS_MAX)
    reserved = max(1, places_max // RESERVED_SHARE)
    return Limits(places_max, reserved=reserved, address_max=max(1, places_max // 2))


def start_in(
    group: asyncio.TaskGroup, work: Coroutine[object, object, None], name: str
) -> asyncio.Task[None]:
    """Start a task in the group; raise RemoteProtocolError if the group is ending.

    That error closes the connection. Proposers stay connected until the last log is closed, and a
    request then is no defect."""
    try:
        return group.create_task(work, name=name)
    except RuntimeError:
        work.close()
        raise RemoteProtocolError("this safekeeper stops") from None


async def _serve_http(
    settings: SafekeeperSettings,
    catalog: LogCatalog,
    audit: Audit,
    on_listening: Callable[[str, int], None],
) -> None:
    from walkeeper_common.shell.http_endpoints import serve_http
    from walkeeper_safekeeper.monitoring import endpoints

    assert settings.http is not None
    shown = endpoints(catalog, settings.acceptor_id, audit)
    await serve_http(settings.http, shown, on_listening=on_listening)


def _refuse_open_door(settings: SafekeeperSettings) -> None:
    """Apply the loopback rule to both ports; raise Refused, or warn of an open one."""
    allowed = settings.allow_unauthenticated
    for address, option, risk in (
        (settings.listen, "--listen", "read and write the WAL"),
        (settings.http, "--http", "see the names, members and positions of the logs"),
    ):
        if refuse_open_door(address, option, risk, allowed=allowed) and address is not None:
            logger.warning("no authentication: all that reach %s can %s", address[0], risk)
