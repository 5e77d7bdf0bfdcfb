"""A pass over WAL whose segments are decoded side by side: each one once, by threads or machines.

    pass_in_parallel(parts, files, plan, consumers, until=…)   as pass_over, of decoded segments
    control_of(reading, until, store) -> Taken           the part of one segment, for catalogs

Contract: the result is that of `pass_over` with the same consumers, if the taken records have all
that the consumers need. Memory is that of the taken records of a few segments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from walkeeper_replay.redo.chosen_records import control_records
from walkeeper_replay.redo.store import Relation
from walkeeper_replay.redo.wal_pass import Consumer, Passed, next_record_lsn, up_to
from walkeeper_wal.records.segment import Column
from walkeeper_wal.sources.plan import Plan
from walkeeper_wal.sources.reading import Batch, Reading
from walkeeper_wal.sources.record_chain import RecordChain
from walkeeper_wal.sources.threaded_reading import OnProblem, Part, raise_fatal
from walkeeper_wal.sources.wal_files import WalFiles

Choose = Callable[[Batch], Batch]


@dataclass(slots=True)
class Taken:
    """Chosen records of one segment; `is_cut` if a later record ends after `until`."""

    batches: list[Batch] = field(default_factory=list)
    is_cut: bool = False
    changed: list[Column] = field(default_factory=list)
    """The rows of `heap_changes`, if a caller needs them."""
    newest_xids: list[int | None] = field(default_factory=list)
    """The `newest_xid` of each batch, if a caller needs them."""


@dataclass(frozen=True, slots=True)
class CatalogFiles:
    """The files of catalogs, by their numbers in any database or each by itself."""

    low_nodes: tuple[int, ...]
    files: list[Relation]

    def choose(self, batch: Batch) -> Batch:
        """Return the records that catalogs and transactions need."""
        return control_records(batch, self.low_nodes, self.files)


def taken_of(reading: Reading, until: int | None, choose: Choose) -> Taken:
    """Return the chosen records of a segment that end at or below `until`."""
    taken = Taken()
    if until is not None and reading.segment.first_lsn >= until:
        taken.is_cut = True
        return taken
    for batch in reading:
        kept = up_to(batch, until)
        if kept is not None:
            taken.batches.append(choose(kept))
        if kept is not batch:
            taken.is_cut = True
            break
    return taken


def pass_in_parallel(
    parts: Iterable[Part[Taken]],
    files: WalFiles,
    plan: Plan,
    consumers: list[Consumer],
    *,
    until: int | None = None,
    on_problem: OnProblem = raise_fatal,
) -> Passed:
    """Give each chosen batch to each consumer, in the order of the log."""
    end, chain = 0, RecordChain()
    for part in parts:
        if part.made.batches and not part.problems:
            for problem in chain.begins(part.summary, files):
                on_problem(problem)
        for batch in part.made.batches:
            for consume in consumers:
                consume(batch)
            end = batch.span()[1]
        if part.made.is_cut:
            return Passed(end, True)
        chain.ends(part.summary)
        for problem in part.problems:
            on_problem(problem)
    return Passed(end, until is not None and until <= next_record_lsn(end, plan.segment_bytes))
