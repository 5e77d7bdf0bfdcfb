"""The pieces of an append that are written and synced together. Pure; it copies no WAL."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.walpages import overwriting_pages


def pieces(
    begin: Lsn, views: Sequence[memoryview], segment_bytes: int, barriers: Iterable[Lsn] = ()
) -> Iterator[tuple[Lsn, list[memoryview]]]:
    """Yield (end, slices) of each piece that is written and synced together.

    Pieces end at segment ends and at barriers. Barriers are forks, and pages that cut off the
    record before them (wal_store.py, point 2).
    """
    cuts = {*barriers}
    end = begin + sum(map(len, views))
    cuts.update(Lsn(lsn) for lsn in range(begin.round_up(segment_bytes), end, segment_bytes))
    cuts -= {begin, end}
    lsn, piece = begin, list[memoryview]()
    remaining = [*sorted(cuts), end]
    for view in views:
        while len(view):
            part = view[: remaining[0] - lsn]
            piece.append(part)
            lsn, view = lsn + len(part), view[len(part) :]
            if lsn == remaining[0]:
                yield lsn, piece
                piece = []
                remaining.pop(0)


def pages_that_cut_off(begin: Lsn, views: Sequence[memoryview]) -> Iterator[Lsn]:
    """Yield the pages after `begin` with XLP_FIRST_IS_OVERWRITE_CONTRECORD set."""
    lsn = begin
    for view in views:
        for offset in overwriting_pages(lsn, view):
            if lsn + offset > begin:
                yield lsn + offset
        lsn = lsn + len(view)
