"""WAL that this member does not hold, from the disks of members that do (M8). An asyncio shell.

    others.read(begin_lsn, end_lsn, done)     all of the range, on a thread of its own
    await others.reach(lsn)                   whether a member holds the WAL at an LSN

The members are those of --repair-from. They answer with committed WAL alone, and committed WAL is
the same on every member. So a PostgreSQL client gets it from here as if this disk had it. A peer
asks in walkeeper's own protocol, which is answered from the disk or the archive alone. So two
members that both lack a range do not ask each other for ever.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from walkeeper_common.addresses import Address
from walkeeper_common.errors import Refused, WalkeeperError, WalRemoved
from walkeeper_common.lsn import LSN_MAX, Lsn
from walkeeper_common.shell.process.worker_thread import WorkerThread, call
from walkeeper_common.shell.safekeeper_links.committed_wal import Safekeeper
from walkeeper_safekeeper.archiving.member_copies import OwnLog, another_member

logger = logging.getLogger("walkeeper.log")


class MemberWal:
    """Blocking reads of `peers`. One thread reads, and keeps the connection that answered last."""

    def __init__(self, own: OwnLog, peers: Sequence[Address]) -> None:
        self._own, self._peers = own, peers
        self._source: Safekeeper | None = None

    def read(self, begin_lsn: Lsn, end_lsn: Lsn) -> bytes:
        """Return all of [begin_lsn, end_lsn).

        Raise WalRemoved if no member holds it, and Refused if one that may hold it is silent."""
        if self._source is not None:
            try:
                return _read(self._source, begin_lsn, end_lsn)
            except WalkeeperError:
                self.close()  # it may hold less than this range, or have restarted
        return _read(self._holder(begin_lsn, end_lsn), begin_lsn, end_lsn)

    def reaches(self, lsn: Lsn) -> bool:
        """Return True if a member that answers holds the committed WAL at `lsn`."""
        self.close()
        try:
            self._holder(lsn, lsn + 1)
        except Refused as error:
            logger.info("cluster %s: %s", self._own.cluster, error)
            return False
        return True

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
            self._source = None

    def _holder(self, begin_lsn: Lsn, end_lsn: Lsn) -> Safekeeper:
        """Keep and return a connection to a member that holds the range."""
        silent, oldest_lsn = list[str](), LSN_MAX
        for address in self._peers:
            try:
                found = another_member(self._own, address, "member")
            except WalkeeperError as error:
                silent.append(str(error))
                continue
            if found is None:
                continue
            source, greeting = found
            if greeting.oldest_lsn <= begin_lsn and end_lsn <= greeting.commit_lsn:
                text = "cluster %s: reading WAL from %s on at %s"
                logger.info(text, self._own.cluster, begin_lsn, source.shown)
                self._source = source
                return source
            oldest_lsn = min(oldest_lsn, greeting.oldest_lsn)
            source.close()
        if silent:
            raise Refused(f"no member that answers holds WAL at {begin_lsn}: {'; '.join(silent)}")
        raise WalRemoved(begin_lsn, oldest_lsn)


def _read(source: Safekeeper, begin_lsn: Lsn, end_lsn: Lsn) -> bytes:
    wal = bytearray(end_lsn - begin_lsn)
    for lsn, part in source.read(begin_lsn, end_lsn):
        wal[lsn - begin_lsn : lsn - begin_lsn + len(part)] = part
    return bytes(wal)


class OtherMembers:
    """The driver's port for WAL of other members: a slow member keeps no reader of ours waiting."""

    def __init__(self, wal: MemberWal, thread: WorkerThread) -> None:
        self._wal, self._thread = wal, thread

    def read(self, begin_lsn: Lsn, end_lsn: Lsn, done: Callable[[object], None]) -> None:
        """Read [begin_lsn, end_lsn); call `done` with the bytes or a WalkeeperError."""
        self._thread.submit(lambda: self._wal.read(begin_lsn, end_lsn), done)

    async def reach(self, lsn: Lsn) -> bool:
        """Return True if a member that answers holds the committed WAL at `lsn`."""
        return await call(self._thread, lambda: self._wal.reaches(lsn))

    def stop(self) -> None:
        """Close the connection, after the reads before it."""
        self._thread.submit(self._wal.close, lambda closed: None)
        self._thread.stop()
