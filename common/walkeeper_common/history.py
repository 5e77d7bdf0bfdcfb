"""The history of a log: which ballot wrote which range, and where two logs diverge. Pure.

A history is a tuple of fragments, oldest first; a fragment ends where the next one starts. It is
Neon's term history, BookKeeper's list of fragments and Delos's chain of loglets in one list
(docs/protocol.md#one-list). The seed's single epoch number cannot find the divergence point.

Neighbours may share a ballot, one entry per timeline. Such a run is a *term* and starts at its
first entry. `start_lsn` never decreases. On disk a history may run past the WAL, because it is
adopted before the WAL arrives. So it is always `cut` to flush_lsn before it is used.

A history of many terms is `folded` below an LSN up to which all members have the same WAL. No two
logs diverge below that LSN any more, so the writer no longer matters there. The creation entry has
the LSN. One of two histories may be folded and the other not. Their divergence point is found with
both folded alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from walkeeper_common.lsn import LSN_MAX, ZERO_LSN, Lsn

PROPOSER_ID_BYTES = 16
HISTORY_ENTRIES_MAX = 65536
HISTORY_RESERVE = 4096  # entries for the elections that make a history short again (R25)
TIMELINE_FILE_BYTES_MAX = 1 << 18  # some thousand promotions
TERM_MAX = 2**64 - 1
TERM_JUMP_MAX = 2**32  # a term a second for 136 years


class Corrupt(Exception):
    """Two histories that no run of the protocol can have produced (docs/protocol.md R6)."""


class Ballot(NamedTuple):
    """The seed's NodeId: unique to one run of a proposer, and compared by term, then proposer."""

    term: int
    proposer_id: bytes

    def __repr__(self) -> str:
        return f"{self.term}:{self.proposer_id.hex()[:8]}"


NO_BALLOT = Ballot(0, bytes(PROPOSER_ID_BYTES))


def is_forged(ballot: Ballot, known: Ballot) -> bool:
    """Return True if no run of the protocol leads from `known` to `ballot`.

    A candidate adds one to the greatest term that it has seen (R25).
    """
    return ballot.term - known.term > TERM_JUMP_MAX


@dataclass(frozen=True, slots=True)
class Fragment:
    """`ballot` wrote from `start_lsn` on, on `timeline`, to `members` with `ack_quorum` of them.

    `members` are `id#incarnation`. `generation` numbers their list, or is 0 if the fragment does
    not name it (M5). `sealed` is set by `settle`: no proposer writes on this timeline any more
    (docs/steps.md#settle). The entry that begins a timeline carries its `.history` file, so that a
    reader of its WAL also has the file. `closed` says that the log ends at
    `start_lsn` for good: only the last entry can be (M7). `folded_lsn` is set in the creation entry
    alone. Below it, entries that differ only in their ballot are one.
    """

    ballot: Ballot
    start_lsn: Lsn
    timeline: int
    sealed: bool
    members: tuple[str, ...]
    ack_quorum: int
    timeline_file: bytes = b""
    folded_lsn: Lsn = ZERO_LSN
    closed: bool = False
    generation: int = 0

    def __str__(self) -> str:
        seal = (" sealed" if self.sealed else "") + (" closed" if self.closed else "")
        return f"{self.ballot}@{self.start_lsn}/tl{self.timeline}{seal}"


History: TypeAlias = tuple[Fragment, ...]


def is_well_formed(history: Sequence[Fragment]) -> bool:
    """Return True if no start, ballot or timeline decreases after a creation entry.

    The creation entry is first, has NO_BALLOT, and alone may have a folded_lsn. An entry that
    closes the log is the last one (M7).
    """
    if not history or history[0].ballot != NO_BALLOT:
        return False
    if any(entry.folded_lsn for entry in history[1:]):
        return False
    if any(entry.closed for entry in history[:-1]):
        return False
    return all(
        a.start_lsn <= b.start_lsn and a.ballot <= b.ballot and a.timeline <= b.timeline
        for a, b in pairwise(history)
    )


def cut(history: History, flush_lsn: Lsn) -> History:
    """Return the part of a history that the WAL up to `flush_lsn` bears out; it is never empty."""
    kept = tuple(entry for entry in history if entry.start_lsn <= flush_lsn)
    return kept or history[:1]


def extended(donor: History, entry: Fragment) -> History:
    """Return the new leader's history (R5): the donor's cut one, less what starts at or past it."""
    creation, later = donor[:1], donor[1:]
    return (*creation, *(e for e in later if e.start_lsn < entry.start_lsn), entry)


def folded(history: History, below_lsn: Lsn) -> History:
    """Return the same history, folded up to `below_lsn` or further; 0 folds nothing.

    A run of neighbours that end below it and differ only in their ballot keeps its first entry.
    """
    if below_lsn <= history[0].folded_lsn:
        return history
    kept = [replace(history[0], folded_lsn=below_lsn)]
    for entry in history[1:]:
        if entry.start_lsn >= below_lsn or not _goes_on(kept[-1], entry):
            kept.append(entry)
    return tuple(kept)


def _goes_on(one: Fragment, other: Fragment) -> bool:
    """Return True if two entries say the same of WAL, except for its writer."""
    return (one.timeline, one.members, one.ack_quorum) == (
        other.timeline,
        other.members,
        other.ack_quorum,
    )


def closed_lsn(history: Sequence[Fragment]) -> Lsn | None:
    """Return the last LSN of a log that was closed, or None (M7). Cut the history before."""
    return history[-1].start_lsn if history[-1].closed else None


def foldable_lsn(history: History, restart_lsn: Lsn) -> Lsn:
    """Return how far a history may be folded if all members have the WAL up to `restart_lsn`.

    It is where the last term up to there starts. A term starts at a record's end, which no later
    term cuts. Half a record may follow that end, and the next term cuts it (R5).
    """
    starts = (entry.start_lsn for entry in history if entry.start_lsn <= restart_lsn)
    return max(starts, default=ZERO_LSN)


def term_start(history: History, ballot: Ballot) -> Lsn:
    """Return where the run of entries of `ballot` begins; raise KeyError if it has none."""
    for entry in history:
        if entry.ballot == ballot:
            return entry.start_lsn
    raise KeyError(ballot)


def divergence(proposer: History, acceptor: History, flush_lsn: Lsn) -> Lsn:
    """Return the divergence point of the acceptor's log, which is `flush_lsn` long (R6).

    It is the least of three LSNs. The first is the end of the last common entry in the proposer's
    history, whose current term never ends. The second is that entry's end in the acceptor's
    history, whose last entry ends at flush_lsn. The third is flush_lsn.
    Raise Corrupt if there is no common entry, or if one ballot starts at two places.
    """
    folded_lsn = max(proposer[0].folded_lsn, acceptor[0].folded_lsn)
    proposer, acceptor = folded(proposer, folded_lsn), folded(acceptor, folded_lsn)
    acceptor = cut(acceptor, flush_lsn)
    starts = {(entry.ballot, entry.timeline): entry.start_lsn for entry in proposer}
    for entry in acceptor:
        ours = starts.get((entry.ballot, entry.timeline), entry.start_lsn)
        if ours != entry.start_lsn:
            raise Corrupt(f"ballot {entry.ballot} starts at {ours} and at {entry.start_lsn}")
    common = -1
    for i, (mine, theirs) in enumerate(zip(proposer, acceptor, strict=False)):
        if (mine.ballot, mine.timeline) != (theirs.ballot, theirs.timeline):
            break
        common = i
    if common < 0:
        raise Corrupt(f"no common entry: {proposer[:1]} and {acceptor[:1]}")
    return min(_end(proposer, common, LSN_MAX), _end(acceptor, common, flush_lsn), flush_lsn)


def _end(history: History, index: int, open_end: Lsn) -> Lsn:
    return history[index + 1].start_lsn if index + 1 < len(history) else open_end
