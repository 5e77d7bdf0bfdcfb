"""One log's retention: it keeps what readers, slots, settings and the archive need.

The asyncio shell around `retention`, which has the rules.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from walkeeper_common.errors import WalkeeperError
from walkeeper_common.lsn import Lsn
from walkeeper_safekeeper.hosting.readable_log import ReadableLog
from walkeeper_safekeeper.hosting.retention import (
    copied_from,
    kept_bytes,
    remove_unwanted,
    wanted_lsn,
)
from walkeeper_safekeeper.replication.logical_log import LogicalLog
from walkeeper_safekeeper.safekeeper_driver import Driver
from walkeeper_safekeeper.safekeeper_settings import SafekeeperSettings

logger = logging.getLogger("walkeeper.log")

SLOT_KEEP_FACTOR = 10  # a consumer of changes keeps at most so many times --wal-keep-size


class LogRetention:
    """The retention of one log. `archived_lsn` returns None without an archive."""

    def __init__(
        self,
        readable: ReadableLog,
        driver: Driver,
        settings: SafekeeperSettings,
        archived_lsn: Callable[[], Lsn | None],
    ) -> None:
        self._readable, self._driver, self._settings = readable, driver, settings
        self._archived_lsn = archived_lsn
        if readable.logical is None:
            driver.wanted_lsn = self.wanted_lsn

    def copied_lsn(self) -> Lsn:
        """Return from where on a physical log copies WAL that it lacks from other members."""
        slots = self._readable.slots.slots.holding(has_archive=False)
        return copied_from(
            (slot.retention_lsn for slot in slots if slot.retention_lsn is not None),
            flush_lsn=self._driver.acceptor.flush_lsn,
            keep_bytes=self._settings.wal_keep_bytes,
            size_max=self._settings.wal_bytes_max,
        )

    async def remove(self) -> None:
        """Remove the WAL, or a logical log's entries, that no reader needs any more."""
        if self._readable.logical is None:
            self.remove_wal()
        else:
            await self._remove_entries(self._readable.logical)

    def remove_wal(self) -> None:
        """Remove the WAL of a physical log that no reader needs any more."""
        self._remove_below(self.wanted_lsn())

    def wanted_lsn(self) -> Lsn | None:
        """Return the oldest WAL of a physical log that a slot or a connected reader lacks."""
        readable = self._readable
        has_archive = self._archived_lsn() is not None
        slots = [
            slot.retention_lsn for slot in readable.slots.slots.holding(has_archive=has_archive)
        ]
        readers = [reader.retention_lsn for reader in readable.readers]
        return wanted_lsn(
            [lsn for lsn in (*slots, *readers) if lsn is not None],
            first_lsn=self._driver.store.first_lsn,
            has_archive=has_archive,
        )

    async def _remove_entries(self, logical: LogicalLog) -> None:
        try:
            wanted = await logical.horizon(SLOT_KEEP_FACTOR * self._settings.wal_keep_bytes)
        except WalkeeperError as error:
            name = self._readable.cluster
            logger.warning("cluster %s: nothing is removed: %s", name, error)
        else:
            self._remove_below(wanted)

    def _remove_below(self, wanted: Lsn | None) -> None:
        settings = self._settings
        keep_bytes = kept_bytes(
            settings.wal_keep_bytes,
            used_bytes=self._driver.store.used_bytes,
            size_max=settings.wal_bytes_max,
        )
        remove_unwanted(
            self._driver,
            self._readable.readable_lsn if wanted is None else wanted,
            keep_bytes=keep_bytes,
            archived_lsn=self._archived_lsn(),
        )
