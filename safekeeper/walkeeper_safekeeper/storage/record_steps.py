"""Steps over WAL that lies on the disk, checked by the CRCs of its records.

step(wal, at_lsn, end_lsn) -> Step     the next place, or the reason why the WAL is flawed there
flaw_in(wal, at_lsn, until_lsn, …)     the first such reason below until_lsn, or None
PatchedWal(store, begin_lsn, copy)     a store's WAL with a copy in the place of one part
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.walformat import ScanEnd
from walkeeper_safekeeper.storage.wal_store import WalStore

STEP_BYTES = 256 << 10
STEP_BYTES_MAX = 1 << 30  # a record is at most that long


class Scanned(Protocol):
    """WAL that can be walked."""

    def scan(self, start_lsn: Lsn, limit_lsn: Lsn) -> ScanEnd: ...
    def name_of(self, lsn: Lsn) -> str: ...


@dataclass(frozen=True, slots=True)
class Step:
    """The result of one step: the next one begins at `next_lsn`, or the WAL is flawed there."""

    next_lsn: Lsn
    flaw: str | None = None


def step(wal: Scanned, at_lsn: Lsn, end_lsn: Lsn) -> Step:
    """Check the records from `at_lsn` on, a step's worth or one long record; read the disk.

    Whole records end at `end_lsn`. Raise StorageError or WalRemoved.
    """
    size = STEP_BYTES
    while True:
        limit_lsn = min(Lsn(at_lsn + size), end_lsn)
        found = wal.scan(at_lsn, limit_lsn)
        next_lsn = found.end_lsn if found.switched_to is None else found.switched_to
        if next_lsn > at_lsn:
            return Step(next_lsn)
        if limit_lsn == end_lsn or size >= STEP_BYTES_MAX:
            return Step(at_lsn, f"segment {wal.name_of(at_lsn)}: {found.reason}")
        size *= 2


def flaw_in(wal: Scanned, at_lsn: Lsn, until_lsn: Lsn, end_lsn: Lsn) -> str | None:
    """Return why a record from `at_lsn` on is not sound, or None if all that begin before
    `until_lsn` are. Raise as `step` does."""
    while at_lsn < until_lsn:
        found = step(wal, at_lsn, end_lsn)
        if found.flaw is not None:
            return found.flaw
        at_lsn = found.next_lsn
    return None


class PatchedWal:
    """A store's WAL in which `copy` stands from `begin_lsn` on."""

    def __init__(self, store: WalStore, begin_lsn: Lsn, copy: bytes) -> None:
        self._store, self._begin_lsn, self._copy = store, begin_lsn, copy
        self._end_lsn = Lsn(begin_lsn + len(copy))

    def read(self, begin_lsn: Lsn, end_lsn: Lsn) -> bytes:
        """Return [begin_lsn, end_lsn); raise as the store does."""
        inner = (max(begin_lsn, self._begin_lsn), min(end_lsn, self._end_lsn))
        if inner[0] >= inner[1]:
            return self._store.read(begin_lsn, end_lsn)
        head = self._store.read(begin_lsn, inner[0])
        at, to = (lsn - self._begin_lsn for lsn in inner)
        return head + self._copy[at:to] + self._store.read(inner[1], end_lsn)

    def scan(self, start_lsn: Lsn, limit_lsn: Lsn) -> ScanEnd:
        return self._store.scan(start_lsn, limit_lsn, wal=self)

    def name_of(self, lsn: Lsn) -> str:
        return self._store.name_of(lsn)

    def bears_out(self, at_lsn: Lsn, end_lsn: Lsn) -> bool:
        """Return True if all records from `at_lsn` to the end of the copy are sound.

        `at_lsn` is where a record begins, and whole records end at `end_lsn`."""
        return flaw_in(self, at_lsn, min(self._end_lsn, end_lsn), end_lsn) is None
