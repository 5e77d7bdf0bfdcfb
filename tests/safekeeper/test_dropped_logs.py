"""Dropped logs: the tombstone comes first, and a start finishes a removal (M7)."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from walkeeper_common.errors import CorruptWal, Refused
from walkeeper_common.history import NO_BALLOT
from walkeeper_common.lsn import Lsn
from walkeeper_common.quorum import Configuration, LogKind, member_name
from walkeeper_common.wire.log_removal import DropLog
from walkeeper_common.wire.messages import Reject
from walkeeper_common.wire.requests import ConfigureLog, LogQuery, LogState, PrepareLog
from walkeeper_safekeeper.disk.dropped_logs import DroppedLogs
from walkeeper_safekeeper.hosting.log_catalog import LogCatalog
from walkeeper_safekeeper.proposer_sessions import Session
from walkeeper_safekeeper.safekeeper_settings import SafekeeperSettings
from walkeeper_safekeeper.storage import tombstones
from walkeeper_safekeeper.storage.tombstones import DROPPED_MAX, Tombstone, Tombstones

UUID, OTHER = b"u" * 16, b"o" * 16
Story = Callable[[LogCatalog], Awaitable[None]]


def on_safekeeper(directory: Path, *stories: Story) -> None:
    """Run each story on a safekeeper of its own, one after the other, on one directory."""

    async def one(story: Story) -> None:
        settings = SafekeeperSettings(1, str(directory), ("127.0.0.1", 0))
        group = asyncio.TaskGroup()
        catalog = LogCatalog(settings, group, lambda defect: None)
        try:
            async with group:
                await catalog.open_all()
                try:
                    await story(catalog)
                finally:
                    await catalog.close()
                raise _Ended
        except* _Ended:
            pass

    for story in stories:
        asyncio.run(one(story))


class _Ended(Exception):
    """Ends the group of a safekeeper."""


async def make(
    catalog: LogCatalog, log_uuid: bytes = UUID, kind: LogKind = LogKind.PHYSICAL
) -> None:
    state = await catalog.administer(PrepareLog("main", log_uuid))
    assert isinstance(state, LogState)
    member = member_name(1, state.incarnation)
    configuration = Configuration(
        log_uuid=log_uuid, generation=1, kind=kind, system_id=7,
        segment_bytes=1 << 20, members=(member,),
        ack_quorum=1, creation_lsn=Lsn(1 << 20), timeline=1, server_version="150000",
    )  # fmt: skip
    await catalog.administer(ConfigureLog("main", configuration))


async def drop(catalog: LogCatalog) -> None:
    await catalog.administer(DropLog("main", UUID))


async def is_gone(catalog: LogCatalog) -> None:
    state = await catalog.administer(LogQuery("main"))
    assert isinstance(state, LogState) and state.configuration is None
    found = catalog.hosted("main")
    assert isinstance(found, Reject) and UUID.hex() in found.text


def test_a_dropped_log_is_gone_and_stays_gone(tmp_path: Path) -> None:
    async def twice(catalog: LogCatalog) -> None:
        await make(catalog)
        with pytest.raises(Refused, match="and not"):
            await catalog.administer(DropLog("main", OTHER))
        await drop(catalog)
        await drop(catalog)
        await is_gone(catalog)

    on_safekeeper(tmp_path, twice, is_gone)
    assert not (tmp_path / "main").exists() and not list(tmp_path.glob(".dropped-*"))


def test_a_dropped_log_is_not_prepared_again(tmp_path: Path) -> None:
    """A late `create` or `replace` would bring back a member without its promises."""

    async def story(catalog: LogCatalog) -> None:
        await make(catalog)
        await drop(catalog)
        with pytest.raises(Refused, match="was dropped on safekeeper 1"):
            await catalog.administer(PrepareLog("main", UUID))
        await make(catalog, OTHER)

    on_safekeeper(tmp_path, story)


def test_a_safekeeper_without_the_log_refuses_it_later(tmp_path: Path) -> None:
    async def story(catalog: LogCatalog) -> None:
        await drop(catalog)
        with pytest.raises(Refused, match="was dropped"):
            await catalog.administer(PrepareLog("main", UUID))

    on_safekeeper(tmp_path, story)


@pytest.mark.parametrize("crashed", ["buried", "renamed"])
def test_a_start_finishes_a_removal(tmp_path: Path, crashed: str) -> None:
    on_safekeeper(tmp_path, make)
    dropped = DroppedLogs(str(tmp_path))
    dropped.bury(Tombstone("main", UUID, NO_BALLOT, 5))
    if crashed == "renamed":
        shutil.move(tmp_path / "main", tmp_path / f".dropped-{UUID.hex()}")
    on_safekeeper(tmp_path, is_gone)
    assert not (tmp_path / "main").exists() and not list(tmp_path.glob(".dropped-*"))


def test_a_log_that_a_proposer_leads_is_not_dropped(tmp_path: Path) -> None:
    async def story(catalog: LogCatalog) -> None:
        await make(catalog)
        (log,) = catalog.logs()
        log.driver.acceptor.appender = 1
        log.sessions.by_connection[1] = cast(Session, SimpleNamespace(receives_more=lambda: False))
        with pytest.raises(Refused, match="a proposer leads main: detach, and stop it first"):
            await drop(catalog)
        log.driver.acceptor.appender = None
        await drop(catalog)

    on_safekeeper(tmp_path, story)


def test_the_file_of_tombstones_is_bounded_and_checked() -> None:
    kept = Tombstones()
    for number in range(DROPPED_MAX + 1):
        kept = kept.with_log(Tombstone("main", number.to_bytes(16, "big"), NO_BALLOT, number))
    assert len(kept.dropped) == DROPPED_MAX and kept.dropped[0].dropped_s == 1
    assert kept.with_log(kept.dropped[5]) is kept
    data = tombstones.encode(kept)
    assert tombstones.decode(data, "f") == kept
    with pytest.raises(CorruptWal, match="Remove this file"):
        tombstones.decode(data[:-1], "f")
