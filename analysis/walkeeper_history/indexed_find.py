"""Read for `find` only the segments in which its transactions have records, by an index.

    read_with(index, plan, read_but, xid) -> parts of every segment, in order

Contract: `findings` and `transaction` find the same in these parts as in those of all segments. A
segment that was not read has a part without deeds, whose summary has its place in the chain.
`read_with` keeps no ends of other transactions, so that memory grows only with the wanted ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from walkeeper_history.find import SegmentDeeds
from walkeeper_history.segment_index import ProvenIndex
from walkeeper_wal.sources.plan import Plan
from walkeeper_wal.sources.threaded_reading import Part

Deeds = Part[SegmentDeeds]
ReadBut = Callable[[frozenset[int]], Iterable[Deeds]]
"""Reads all segments of a plan but those with these first LSNs."""


def read_with(
    index: ProvenIndex, plan: Plan, read_but: ReadBut, xid: int | None
) -> Iterator[Deeds]:
    """Return a part for each segment: about the transaction `xid`, or about all deeds."""
    facts = {s.first_lsn: found for s in plan.segments if (found := index.facts(s)) is not None}
    asked = set() if xid is None else {xid}
    if xid is None:
        asked.update(*(each.deed_xids for each in facts.values()))
    every = frozenset(s.first_lsn for s in plan.segments)
    read: dict[int, Deeds] = {}
    unread = every - facts.keys()  # segments without facts come first: they may add transactions
    while True:
        for part in read_but(every - unread) if unread else ():
            _ask_for_families(part.made, asked, asks_all=xid is None)
            read[part.summary.segment.first_lsn] = _only(part, asked)
        lacking = index.lacking(plan, "xids", frozenset(asked)) & facts.keys()
        unread = every - lacking - read.keys()
        if not unread:
            break
    for segment in plan.segments:
        first = segment.first_lsn
        known = read.get(first)
        yield known or Part(SegmentDeeds(), facts[first].summary(segment), [])


def _ask_for_families(deeds: SegmentDeeds, asked: set[int], *, asks_all: bool) -> None:
    """Add the transactions and subtransactions that belong to the requested ones."""
    if asks_all:
        asked.update(deeds.deeds)
    for end in deeds.ends:
        if (asks_all and end.detail.dropped) or not asked.isdisjoint(end.family):
            asked.update(end.family)


def _only(part: Deeds, asked: set[int]) -> Deeds:
    """Return a part without the ends of others. Its first records are few numbers."""
    made = part.made
    kept = [end for end in made.ends if not asked.isdisjoint(end.family)]
    return replace(part, made=replace(made, ends=kept))
