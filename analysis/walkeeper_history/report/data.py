"""The data of a report, gathered in one pass over an archive.

Contract: any thread may make a segment's part. The parts are merged in the order of the log. A
segment's part is bounded (points of the rate, its largest transactions, sampled blocks). Times are
those of commits, the greatest so far, in PostgreSQL's microseconds since 2000.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from walkeeper_history.report.checkpoint_spacing import Touches
from walkeeper_history.rows.events import (
    CHECKPOINT_COLUMNS,
    checkpoints_of,
    commit_times,
    transactions_of,
)
from walkeeper_history.rows.relations import RelationSums
from walkeeper_history.rows.stats import Stats
from walkeeper_history.rows.view import View
from walkeeper_wal.records.segment import Column
from walkeeper_wal.sources.plan import Problem
from walkeeper_wal.sources.reading import Batch, Reading
from walkeeper_wal.sources.summary import Summary

POINTS_PER_BATCH = 64
TRANSACTIONS_PER_SEGMENT = 50
_CHECKPOINT = ("checkpoint_lsn", "redo_lsn", "kind", "checkpoint_time", "next_xid")


@dataclass(slots=True)
class Transaction:
    """One of the largest transactions: its WAL in what was read, its span, and when it ended."""

    xid: int
    wal_bytes: int
    records: int
    start_lsn: int
    end_lsn: int
    time: int | None = None
    outcome: str = ""


@dataclass(slots=True)
class ReportData:
    """The data of a segment, or of a whole archive."""

    stats: Stats = field(default_factory=Stats)
    relations: RelationSums = field(default_factory=RelationSums)
    touches: Touches = field(default_factory=Touches)
    # Points of the log: LSN, commit time so far (0 if none yet), and bytes of records and of images
    # since the point before.
    points: list[Column] = field(default_factory=list)
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    transactions: dict[int, Transaction] = field(default_factory=dict)
    ends: dict[int, tuple[int, str]] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)
    summaries: list[Summary] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    crcs_checked: bool = True

    def add(self, other: ReportData) -> None:
        self.stats.add(other.stats)
        self.relations.add(other.relations)
        self.touches.extend(other.touches)
        self.points += other.points
        self.checkpoints += other.checkpoints
        self.summaries += other.summaries
        for name, count in other.outcomes.items():
            self.outcomes[name] = self.outcomes.get(name, 0) + count
        for each in other.transactions.values():
            if (mine := self.transactions.get(each.xid)) is None:
                self.transactions[each.xid] = each
            else:
                mine.wal_bytes, mine.records = (
                    mine.wal_bytes + each.wal_bytes,
                    mine.records + each.records,
                )
                mine.end_lsn = max(mine.end_lsn, each.end_lsn)
        for xid, (time, outcome) in other.ends.items():
            if xid in self.transactions:
                self.transactions[xid].time, self.transactions[xid].outcome = time, outcome

    def log(self) -> Column:
        """Return all points: rows of (LSN, rising time, record bytes, image bytes)."""
        points: Column = np.concatenate(self.points) if self.points else np.zeros((0, 4), np.int64)
        points[:, 1] = np.maximum.accumulate(points[:, 1])
        return points


def gather(reading: Reading) -> ReportData:
    """Return one segment's part."""
    data = ReportData()
    totals: dict[int, Transaction] = {}
    for batch in reading:
        view = View(batch)
        data.stats.add_batch(batch)
        data.relations.add_batch(batch)
        data.touches.add_batch(batch)
        _add_transactions(batch, totals)
        ended = transactions_of(view)
        times, known = commit_times(ended)
        data.points.append(_points(batch, ended.start_lsn[known], times[known]))
        kinds = ("commit", "prepare", "abort", "commit", "abort")
        outcomes = [kinds[kind] for kind in (ended.kind & 15).tolist()]
        xids = ended.records["xid"].tolist()
        for xid, time, outcome in zip(xids, times.tolist(), outcomes, strict=True):
            data.ends[xid] = time, outcome
            data.outcomes[outcome] = data.outcomes.get(outcome, 0) + 1
        checkpoints = checkpoints_of(view)
        if len(checkpoints):
            columns = {n: CHECKPOINT_COLUMNS[n].make(checkpoints).to_pylist() for n in _CHECKPOINT}
            data.checkpoints += [
                dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
            ]
    largest = sorted(totals.values(), key=lambda each: -each.wal_bytes)
    data.transactions = {each.xid: each for each in largest[:TRANSACTIONS_PER_SEGMENT]}
    data.summaries.append(reading.summary)
    return data


def _points(batch: Batch, lsns: Column, times: Column) -> Column:
    """Return points evenly over the batch's records, the last record among them."""
    records = batch.records
    rows = np.unique(np.linspace(0, len(records) - 1, POINTS_PER_BATCH).astype(np.int64))
    points = np.zeros((len(rows), 4), np.int64)
    points[:, 0] = batch.start_lsn()[rows]
    if len(times):
        reached = np.maximum.accumulate(times)
        before = np.searchsorted(lsns, points[:, 0], side="right")
        points[:, 1] = np.where(before > 0, reached[np.maximum(before - 1, 0)], 0)
    for column, name in ((2, "length"), (3, "fpi_length")):
        running = np.cumsum(records[name], dtype=np.int64)[rows]
        points[:, column] = np.diff(running, prepend=0)
    return points


def _add_transactions(batch: Batch, totals: dict[int, Transaction]) -> None:
    records = batch.records
    xids, first, code = np.unique(records["xid"], return_index=True, return_inverse=True)
    sizes = np.bincount(code, weights=records["length"]).astype(np.int64)
    counts = np.bincount(code)
    last = np.zeros(len(xids), np.int64)
    last[code] = np.arange(len(records))
    starts, ends = batch.start_lsn(), batch.end_lsn()
    largest = np.argsort(sizes)[-TRANSACTIONS_PER_SEGMENT - 1 :]
    for n in largest.tolist():
        xid = int(xids[n])
        if xid == 0:
            continue
        each = Transaction(
            xid, int(sizes[n]), int(counts[n]), int(starts[first[n]]), int(ends[last[n]])
        )
        if (before := totals.get(xid)) is not None:
            each.wal_bytes, each.records = (
                each.wal_bytes + before.wal_bytes,
                each.records + before.records,
            )
            each.start_lsn = before.start_lsn
        totals[xid] = each
