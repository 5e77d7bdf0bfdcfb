"""The changes that are not known whole, counted by table and reason. Pure.

    incomplete(changes) -> [Incomplete("public.t", "values … as bytes", 3, 0x15E8000, …), …]
    losses = FirstLoss(on_problem); losses(problem); losses.lsn      changes from there on are LOST

Contract: each change counts whose coverage is less than that of SELECT's rows, and no other one. A
change after a gap in the WAL does not count: the reader named the gap, and its caller reads on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from walkeeper_common.lsn import Lsn
from walkeeper_replay.text.coverage import Coverage, reason
from walkeeper_wal.sources.plan import Problem
from walkeeper_wal.sources.threaded_reading import OnProblem

LOST = reason("WAL before it is missing or damaged")


@dataclass(slots=True)
class FirstLoss:
    """An OnProblem of a caller that may read on. It notes where WAL is first missing or damaged.

    It has to see the problems of a pass that checks CRCs: a later one takes damaged records.
    """

    on_problem: OnProblem
    lsn: int | None = None

    def __call__(self, problem: Problem) -> None:
        self.on_problem(problem)
        if problem.fatal:
            place = problem.start_lsn or 0
            self.lsn = place if self.lsn is None else min(place, self.lsn)


class Incomplete(NamedTuple):
    """Changes of one table with one coverage."""

    table: str
    reason: str
    changes: int
    first_lsn: int
    """The start of the first one's record."""
    last_lsn: int

    @property
    def shown(self) -> str:
        """The count and the reason, for people."""
        return f"{self.changes} of its changes, the first at {Lsn(self.first_lsn)}: {self.reason}"


def incomplete(changes: Iterable[tuple[str, int, Coverage]]) -> list[Incomplete]:
    """Return the counts; `changes` are (table, start of the record, coverage)."""
    found: dict[tuple[str, str], list[int]] = {}
    for table, lsn, coverage in changes:
        if not coverage.has_all and LOST not in coverage.reasons:
            found.setdefault((table, coverage), []).append(lsn)
    return [
        Incomplete(table, reason, len(lsns), min(lsns), max(lsns))
        for (table, reason), lsns in sorted(found.items())
    ]


def problems_of_values(found: Iterable[Incomplete]) -> Iterator[Problem]:
    """Yield a problem for each table and reason of changes that are not complete."""
    for each in found:
        reason = f"not complete: {each.shown}"
        yield Problem(each.table, each.first_lsn, each.last_lsn, reason, fatal=False)
