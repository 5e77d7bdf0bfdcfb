"""The whole records that a cut takes away, kept for people: `orphans/` (docs/reference/files.md).

    keep(store, history, begin_lsn)     copy the whole records from `begin_lsn` on, durably

A log is cut where it parts from its leader's, or from the timeline that a standby was promoted to.
What lies behind was never acknowledged, but a deposed primary may show it to somebody, so it is
kept before it is zeroed: as a directory of segment files, whose name says timeline, range and the
ballot that wrote it. Half a record is worth nothing and is not kept; most cuts take no more.

Contract: a courtesy, never a promise. `keep` raises nothing, whatever the disk does, and says what
it did. It is called before the mark "truncating to" (R7). A crash before the mark leaves the log as
it was, and the copy is made again. With the mark, the copy is durable. Nothing here is ever served,
counted or read back. Never more than TAIL_BYTES_MAX of one tail and KEPT_BYTES_MAX in all, of the
oldest terms less; and only while the disk has room for more WAL beside it.
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
SEGMENTS_LEFT_MIN = 4  # of room for WAL

File: TypeAlias = tuple[str, int, Iterable[tuple[int, bytes]]]  # name, size, (offset, bytes)

_NAME = re.compile(
    r"timeline-(\d+)_([0-9A-F]+)-([0-9A-F]+)_([0-9A-F]+)-([0-9A-F]+)_term-(\d+)_([0-9a-f]+)"
)


class Shelf(Protocol):
    """`orphans/`: directories of files. All of it blocks; every failure is a WalkeeperError."""

    def names(self) -> list[str]: ...
    def size(self, name: str) -> int:
        """What it takes on disk."""

    def room_bytes(self) -> int:
        """What could still be written."""

    def put(self, name: str, files: Iterable[File]) -> None:
        """Durable when it returns, with zeros where nothing was given; never half of it under
        this name. What has the name already is replaced."""

    def remove(self, name: str) -> None: ...


class Orphans:
    """Of one log."""

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
        """Before a cut at `begin_lsn`. A text for the operator, or None: nothing is worth it.

        Blocks for as long as it takes to copy that much; nothing else is going on at a cut.
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
        more = "" if kept_lsn == end_lsn else f" (what goes on behind it up to {end_lsn} is not)"
        return (
            f"WAL from {begin_lsn} to {kept_lsn} is kept in orphans/{name}{more}: pg_waldump -p "
            f"orphans/{name} -t {Timelines(history).at(begin_lsn)} -s {begin_lsn} -e {kept_lsn}"
        )

    def _make_way(self, size: int) -> None:
        """The tails of the oldest terms go first. Names that are not ours are left alone."""
        ours = sorted((name for name in self._shelf.names() if _NAME.fullmatch(name)), key=_age)
        sizes = {name: self._shelf.size(name) for name in ours}
        while ours and sum(sizes.values()) + size > self._kept_bytes_max:
            oldest = ours.pop(0)
            del sizes[oldest]
            self._shelf.remove(oldest)


def orphan_name(history: History, begin_lsn: Lsn, end_lsn: Lsn) -> str:
    """Of [begin_lsn, end_lsn), whose last byte was written by the last ballot below its end."""
    last = cut(history, end_lsn)[-1].ballot
    begin, end = (str(lsn).replace("/", "-") for lsn in (begin_lsn, end_lsn))
    timeline = Timelines(history).before(end_lsn)
    return f"timeline-{timeline}_{begin}_{end}_term-{last.term}_{last.proposer_id.hex()[:8]}"


def _age(name: str) -> tuple[int, Lsn]:
    """Term and begin: what is less is older."""
    found = _NAME.fullmatch(name)
    assert found is not None, f"{name=}"
    return int(found[6]), Lsn((int(found[2], 16) << 32) + int(found[3], 16))


def _files(store: WalStore, begin_lsn: Lsn, end_lsn: Lsn) -> Iterator[File]:
    """Full-size segments; of what is in front of the tail the pages that pg_waldump looks at."""
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
