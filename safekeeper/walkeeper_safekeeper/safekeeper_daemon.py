"""The safekeeper daemon: claims its directory, opens its logs, listens, stops cleanly."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial

from walkeeper_archive.open_store import open_store
from walkeeper_common.access.users import Users
from walkeeper_common.addresses import is_loopback, refuse_open_door, shown_address
from walkeeper_common.errors import Refused, RemoteProtocolError
from walkeeper_common.shell.files.reloaded_file import ReloadedFile, watch
from walkeeper_common.shell.files.users_file import users_file
from walkeeper_common.shell.http.http_locks import HTTP_LOCK, is_locked
from walkeeper_common.shell.log_lines.audit import Audit
from walkeeper_common.shell.process.daemon_process import announce_ready, end_on_defect, run_daemon
from walkeeper_common.shell.process.descriptors import connections_allowed, waiting_allowed
from walkeeper_common.shell.tls.own_credentials import own_credentials
from walkeeper_safekeeper.connections.arrivals import Arrivals
from walkeeper_safekeeper.connections.connection_limits import Limits
from walkeeper_safekeeper.connections.waiting_line import LineLimits
from walkeeper_safekeeper.disk.real_disk import claim_data_directory
from walkeeper_safekeeper.hosting.log_catalog import LogCatalog
from walkeeper_safekeeper.proposer_door import ProposerDoor
from walkeeper_safekeeper.safekeeper_settings import SafekeeperSettings
from walkeeper_safekeeper.server import CLIENTS_MAX, UNDECIDED_MAX, PlainPeers, serve

logger = logging.getLogger("walkeeper.safekeeper")

# With clients, those of --http and connections that say nothing below 1,000: descriptors.py.
PROPOSERS_MAX = 400
RESERVED_SHARE = 10  # one place of so many is left to commands and to the leader

WARN_EACH_S = 3600.0
RISKS = {
    "--listen": "read and write the WAL",
    "--http": "see the names, members and positions of the logs",
}


def run(settings: SafekeeperSettings) -> int:
    """Run the daemon; return the exit code."""
    return run_daemon(
        lambda: _main(settings), log_level=settings.log_level, log_json=settings.log_json
    )


async def _main(settings: SafekeeperSettings) -> int:
    _refuse_wrong_file(settings)
    _refuse_open_door(settings)
    users = None if settings.users is None else watch(users_file(settings.users))
    claimed = claim_data_directory(settings.data_dir, settings.acceptor_id)
    try:
        async with asyncio.TaskGroup() as group:
            await _serve(settings, group, users)
    finally:
        claimed.release()
    return 0


async def _serve(
    settings: SafekeeperSettings, group: asyncio.TaskGroup, users: ReloadedFile[Users] | None
) -> None:
    if settings.archive is not None:
        open_store(settings.archive.url)  # raises Refused before a port is open
    catalog = LogCatalog(settings, group, end_on_defect)
    audit = Audit(as_json=settings.audit_json)
    arrivals = Arrivals(audit, line_limits())
    door = ProposerDoor(proposer_limits(), catalog, partial(start_in, group), audit, arrivals)

    def on_ready(host: str, port: int) -> None:
        announce_ready(f"safekeeper {settings.acceptor_id} on {shown_address((host, port))}")

    group.create_task(_warn_of_open_doors(settings), name="warnings of open doors")
    try:
        await catalog.open_all()
        group.create_task(door.run(), name="silent connections")
        group.create_task(catalog.space.run(), name="disk space")
        if settings.http is not None:
            listening = asyncio.Event()
            serving = _serve_http(settings, catalog, audit, lambda *_: listening.set())
            group.create_task(serving, name="http")
            await listening.wait()  # the daemon is ready when both ports listen
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
            plain=PlainPeers(not settings.require_tls, anywhere=settings.allow_unauthenticated),
            credentials=own_credentials(),
            users=users,
            arrivals=arrivals,
        )
    finally:
        await catalog.close()


def proposer_limits() -> Limits:
    """Return the bounds on connections of proposers and commands in this process."""
    places_max = connections_allowed(PROPOSERS_MAX)
    reserved = max(1, places_max // RESERVED_SHARE)
    return Limits(places_max, reserved=reserved, address_max=max(1, places_max // 2))


def line_limits() -> LineLimits:
    """Return the bounds on new connections that wait in this process."""
    line_max = waiting_allowed()
    network_max = min(LineLimits().network_max, max(1, line_max // 2))
    return LineLimits(network_max=network_max, line_max=line_max)


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
    from walkeeper_common.shell.http.http_endpoints import serve_http
    from walkeeper_safekeeper.safekeeper_monitoring import endpoints

    assert settings.http is not None
    is_open = bool(open_doors(settings))
    shown = endpoints(catalog, settings.acceptor_id, audit, is_open=is_open)

    await serve_http(settings.http, shown, on_listening=on_listening, audit=audit)


def _refuse_wrong_file(settings: SafekeeperSettings) -> None:
    """Raise Refused for a TLS file that peers would refuse, or for options that contradict it."""
    credentials = own_credentials()
    if credentials is None:
        if settings.require_tls:
            raise Refused("--require-tls needs a TLS file: add --tls FILE")
        return
    if settings.require_tls and settings.allow_unauthenticated:
        raise Refused("--require-tls and --allow-unauthenticated exclude each other: leave one out")
    stated_id = credentials.own_identity().safekeeper_id
    if stated_id != settings.acceptor_id:
        whose = "no safekeeper's" if stated_id is None else f"that of safekeeper {stated_id}"
        raise Refused(
            f"the certificate in {credentials.path} is {whose}, and this is safekeeper "
            f"{settings.acceptor_id}; issue one with --role safekeeper "
            f"--name {settings.acceptor_id}"
        )


def _refuse_open_door(settings: SafekeeperSettings) -> None:
    """Apply the loopback rule to both ports; raise Refused if it is broken."""
    allowed = settings.allow_unauthenticated
    is_secured = allowed or own_credentials() is not None
    risk = RISKS["--listen"]
    refuse_open_door(settings.listen, "--listen", risk, allowed=is_secured, lock="--tls FILE")
    is_safe = allowed or is_locked()
    refuse_open_door(settings.http, "--http", RISKS["--http"], allowed=is_safe, lock=HTTP_LOCK)


def open_doors(settings: SafekeeperSettings) -> Sequence[str]:
    """Return a warning for each port where strangers need no certificate."""
    if not settings.allow_unauthenticated:
        return ()
    return [
        f"no authentication: all that reach {address[0]} can {RISKS[option]}"
        for address, option in ((settings.listen, "--listen"), (settings.http, "--http"))
        if address is not None and not is_loopback(address[0])
        if option != "--http" or not is_locked()
    ]


async def _warn_of_open_doors(settings: SafekeeperSettings) -> None:
    """Warn now and each hour, until cancelled; it ends at once if there is no open door."""
    while warnings := open_doors(settings):
        for warning in warnings:
            logger.warning("%s", warning)
        await asyncio.sleep(WARN_EACH_S)
