"""The whole records that a cut takes away, kept for people: `orphans/` (docs/reference/files.md).

    keep(store, history, begin_lsn)     copy the whole records from `begin_lsn` on, durably

A log is cut where it diverges from its leader's, or from the timeline that a standby was promoted
to. The WAL to truncate was never acknowledged, but a deposed primary may have shown it to a client.
So `keep` copies it before it is zeroed, to a directory of segment files. The directory's name holds
the timeline, the range and the ballot that wrote it. `keep` leaves out an incomplete record, and
most truncations remove no more than that.

Contract: a courtesy, never a promise. `keep` never raises, and returns a text on its result. The
driver calls it before the mark "truncating to" (R7). A crash before the mark leaves the log as
it was, and the copy is made again. With the mark, the copy is durable. No part of this program
serves, counts or reads the copies. They take at most TAIL_BYTES_MAX for one truncation and
KEPT_BYTES_MAX in all; those of the oldest terms go first. The disk must have room for more WAL.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Protocol, TypeAlias

from walkeeper_common.errors import WalkeeperError
from walkeeper_common.history import History, cut
from walkeeper_common.lsn import WAL_PAGE_BYTES, Lsn
from walkeeper_common.timelines import Timelines
from walkeeper_safekeeper.storage.wal_store import CHUNK_BYTES, WalStore

TAIL_BYTES_MAX = 64 << 20
KEPT_BYTES_MAX = 256 << 20
SEGMENTS_LEFT_MIN = 4  # free space left for WAL

File: TypeAlias = tuple[str, int, Iterable[tuple[int, bytes]]]  # name, size, (offset, bytes)

_NAME = re.compile(
    r"timeline-(\d+)_([0-9A-F]+)-([0-9A-F]+)_([0-9A-F]+)-([0-9A-F]+)_term-(\d+)_([0-9a-f]+)"
)


class Shelf(Protocol):
    """`orphans/`: directories of files. All of it blocks; every failure is a WalkeeperError."""

    def names(self) -> list[str]: ...
    def size(self, name: str) -> int:
        """Return its size on disk."""

    def room_bytes(self) -> int:
        """Return the free bytes of the disk."""

    def put(self, name: str, files: Iterable[File]) -> None:
        """Write a directory, durably, with zeros in the gaps; replace one of the same name.

        The name never shows an incomplete directory."""

    def remove(self, name: str) -> None: ...


class Orphans:
    """The orphans of one log."""

    def __init__(
        self,
        shelf: Shelf,
        *,
        tail_bytes_max: int = TAIL_BYTES_MAX,
        kept_bytes_max: int = KEPT_BYTES_MAX,
    ) -> None:
        self._shelf = shelf
        self._tail_bytes_max, self._kept_bytes_max = tail_bytes_max, kept_bytes_max

    def keep(self, store: WalStore, history: History, begin_lsn: Lsn) -> str | None:
        """Copy the WAL that a truncation to `begin_lsn` removes; return a text for the operator.

        Return None if there is no whole record to copy. Block for the time of the copy; no other
        work of the log is under way then.
        """
        try:
            return self._keep(store, history, begin_lsn)
        except WalkeeperError as error:
            return f"WARNING: what is cut at {begin_lsn} is not kept in orphans/: {error}"

    def _keep(self, store: WalStore, history: History, begin_lsn: Lsn) -> str | None:
        limit_lsn = store.contiguous_end(begin_lsn)
        end_lsn = store.scan(begin_lsn, limit_lsn).end_lsn
        if end_lsn <= begin_lsn:
            return None
        kept_lsn = min(end_lsn, begin_lsn + self._tail_bytes_max)
        size = kept_lsn - begin_lsn
        room = self._shelf.room_bytes()
        if room < size + SEGMENTS_LEFT_MIN * store.segment_bytes:
            return (
                f"WARNING: WAL from {begin_lsn} to {end_lsn} is cut and not kept in orphans/: the "
                f"disk has room for {room >> 20} MB only, and WAL comes first"
            )
        name = orphan_name(history, begin_lsn, kept_lsn)
        self._make_way(size)
        self._shelf.put(name, _files(store, begin_lsn, kept_lsn))
        more = "" if kept_lsn == end_lsn else f" (what goes on after it up to {end_lsn} is not)"
        return (
            f"WAL from {begin_lsn} to {kept_lsn} is kept in orphans/{name}{more}: pg_waldump -p "
            f"orphans/{name} -t {Timelines(history).at(begin_lsn)} -s {begin_lsn} -e {kept_lsn}"
        )

    def _make_way(self, size: int) -> None:
        """Remove the oldest terms' copies until `size` fits; leave foreign names alone."""
        ours = sorted((name for name in self._shelf.names() if _NAME.fullmatch(name)), key=_age)
        sizes = {name: self._shelf.size(name) for name in ours}
        while ours and sum(sizes.values()) + size > self._kept_bytes_max:
            oldest = ours.pop(0)
            del sizes[oldest]
            self._shelf.remove(oldest)


def orphan_name(history: History, begin_lsn: Lsn, end_lsn: Lsn) -> str:
    """Return the name for [begin_lsn, end_lsn), with the ballot that wrote its last byte."""
    last = cut(history, end_lsn)[-1].ballot
    begin, end = (str(lsn).replace("/", "-") for lsn in (begin_lsn, end_lsn))
    timeline = Timelines(history).before(end_lsn)
    return f"timeline-{timeline}_{begin}_{end}_term-{last.term}_{last.proposer_id.hex()[:8]}"


def _age(name: str) -> tuple[int, Lsn]:
    """Return (term, begin), by which a copy is older than another."""
    found = _NAME.fullmatch(name)
    assert found is not None, f"{name=}"
    return int(found[6]), Lsn((int(found[2], 16) << 32) + int(found[3], 16))


def _files(store: WalStore, begin_lsn: Lsn, end_lsn: Lsn) -> Iterator[File]:
    """Yield full-size segments; before the tail, only the pages that pg_waldump reads."""
    lsn = begin_lsn
    while lsn < end_lsn:
        start, file_end = store.segment_start(lsn), min(store.file_end(lsn), end_lsn)
        yield store.name_of(lsn), store.segment_bytes, _chunks(store, start, lsn, file_end)
        lsn = file_end


def _chunks(store: WalStore, start: Lsn, lsn: Lsn, end_lsn: Lsn) -> Iterator[tuple[int, bytes]]:
    page = lsn.round_down(WAL_PAGE_BYTES)
    if page > start:
        yield 0, store.read(start, start + WAL_PAGE_BYTES)
    while page < end_lsn:
        chunk_end = min(page + CHUNK_BYTES, end_lsn)
        yield page - start, store.read(page, chunk_end)
        page = chunk_end
