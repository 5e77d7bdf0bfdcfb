"""`walkeeper check`: runs all checks in their order and yields each finding as it is known. Shell.

async for finding in run(settings)     each check has a time limit of its own
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from walkeeper_admin.check.archive_checks import from_reports, restorable
from walkeeper_admin.check.certificates import from_certificates
from walkeeper_admin.check.finding import Finding, Grade, ok
from walkeeper_admin.check.marker import (
    came_back,
    commit_marker,
    restore_options,
    wait_archived,
    wait_on_quorum,
)
from walkeeper_admin.check.primary_checks import from_primary, from_primary_of_closed_log
from walkeeper_admin.check.status_checks import from_status
from walkeeper_admin.log_verdict import name_of
from walkeeper_admin.primary.standby_names import DEFAULT_NAME
from walkeeper_admin.status import gather, gather_fresh
from walkeeper_common.addresses import Address
from walkeeper_common.errors import WalkeeperError


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """The command's flags. Without a DSN nothing is written, and the primary is not asked."""

    safekeepers: tuple[Address, ...]
    cluster: str = "main"
    dsn: str | None = None
    slot: str = "walkeeper"
    archive: str | None = None
    standbys: tuple[str, ...] = ()
    timeout_s: float = 10.0
    archive_wait_s: float = 120.0


async def run(settings: CheckSettings) -> AsyncIterator[Finding]:
    """Yield the findings in the order of the checks, each as soon as it is known."""
    where = settings.safekeepers, settings.cluster, settings.timeout_s
    document = await gather_fresh(*where, settings.dsn)
    for finding in from_status(document):
        yield finding
    names = [name_of(line) for line in document["safekeepers"]]
    for finding in await from_certificates(settings.safekeepers, names, settings.timeout_s):
        yield finding
    is_closed = document["cluster"].get("closed_lsn") is not None
    if settings.dsn is not None:
        leader = document["cluster"]["proposer"]
        name = leader["application_name"] if leader else DEFAULT_NAME
        ask = from_primary_of_closed_log if is_closed else from_primary
        for finding in await ask(settings.dsn, name, settings.slot):
            yield finding
    for finding in from_reports(document):
        yield finding
    if settings.dsn is not None and document["cluster"]["kind"] != "logical" and not is_closed:
        async for finding in _followed(settings, settings.dsn):
            yield finding
    if settings.archive is not None:
        system_id = document["cluster"]["system_id"]
        known = None if system_id is None else int(system_id)
        yield await asyncio.to_thread(restorable, settings.archive, settings.cluster, known)
    for standby in settings.standbys:
        yield await _ancestry(settings, standby)


async def _gathered(settings: CheckSettings) -> dict[str, Any]:
    return await gather(settings.safekeepers, settings.cluster, settings.timeout_s, settings.dsn)


async def _followed(settings: CheckSettings, dsn: str) -> AsyncIterator[Finding]:
    marker, finding = await commit_marker(dsn, settings.timeout_s)
    yield finding
    if marker is None:
        return
    again = partial(_gathered, CheckSettings(settings.safekeepers, settings.cluster))
    yield await wait_on_quorum(marker, again, settings.timeout_s)
    archived = await wait_archived(marker, again, settings.archive_wait_s)
    yield archived
    ways = restore_options(settings.safekeepers, settings.cluster, settings.archive)
    for check, options in ways.items():
        if archived.grade is Grade.OK or check == "restore":
            yield await asyncio.to_thread(came_back, marker, check, options)


async def _ancestry(settings: CheckSettings, dsn: str) -> Finding:
    """Return OK if this standby's WAL is the log's, byte for byte where they are compared."""
    from walkeeper_restore.standby_check.checking import Where
    from walkeeper_restore.standby_check.replayed_wal import vouch
    from walkeeper_restore.wal_source import ArchivedWal

    url = settings.archive
    source = None if url is None else partial(ArchivedWal, url, settings.cluster)
    said: list[str] = []
    try:
        where = Where(settings.safekeepers, settings.cluster, source)
        await vouch(dsn, where, timeout_s=settings.timeout_s, say=said.append)
    except WalkeeperError as error:
        why = "promoted, it would lack commits or have rows that nobody acknowledged"
        remedy = "rebuild it, or pg_rewind; docs/standbys.md"
        return Finding("ancestry", Grade.FAILED, str(error), why, remedy)
    return ok("ancestry", f"the standby's WAL is the log's{'; '.join(['', *said])}")
