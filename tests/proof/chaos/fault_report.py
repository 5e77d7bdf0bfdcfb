"""The figures of a run: one line a fault while it goes on, one line a kind at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

COLUMNS = (
    "fault",
    "times",
    "commits meanwhile",
    "unknown",
    "longest stall s",
    "resumed after s (max)",
    "whole after s (max)",
)


@dataclass(frozen=True, slots=True)
class Occasion:
    """One fault. Times in seconds."""

    kind: str
    hit: str
    held_s: float
    commits: int  # acknowledged from the injection until commits flowed again
    unknown: int
    stall_s: float  # the longest time without any commit, from the injection on
    resumed_s: float  # from healed until commits flow
    whole_s: float  # from healed until every part is back

    def line(self) -> str:
        return (
            f"{self.hit}, held {self.held_s:.1f} s: {self.commits} commits, longest stall "
            f"{self.stall_s:.2f} s, resumed {self.resumed_s:.2f} s and whole {self.whole_s:.1f} s "
            f"after healing, {self.unknown} unknown"
        )


@dataclass
class Report:
    """The figures of one run. `verdict` is filled in at the end."""

    seed: int
    occasions: list[Occasion] = field(default_factory=list)
    acknowledged: int = 0
    unknown: int = 0
    snapshots: int = 0
    primaries_lost: int = 0
    restores: int = 0
    segments_compared: int = 0
    wal_bytes: int = 0
    proposer_restarts: int = 0
    seconds: float = 0.0
    lost: int | None = None
    verdict: str = "unfinished"
    exit_code: int = 1

    def times(self, kind: str) -> int:
        return sum(occasion.kind == kind for occasion in self.occasions)

    def by_kind(self) -> Mapping[str, list[Occasion]]:
        found: dict[str, list[Occasion]] = {}
        for occasion in self.occasions:
            found.setdefault(occasion.kind, []).append(occasion)
        return dict(sorted(found.items()))

    def document(self) -> dict[str, object]:
        """Return the report for --json."""
        return {
            **asdict(self),
            "kinds": {kind: _summary(each) for kind, each in self.by_kind().items()},
        }

    def text(self) -> str:
        rows = [
            [
                kind,
                str(len(each)),
                str(sum(one.commits for one in each)),
                str(sum(one.unknown for one in each)),
                f"{max(one.stall_s for one in each):.2f}",
                f"{max(one.resumed_s for one in each):.2f}",
                f"{max(one.whole_s for one in each):.1f}",
            ]
            for kind, each in self.by_kind().items()
        ]
        lines = [
            table(COLUMNS, rows),
            "",
            f"seed {self.seed}: {len(self.occasions)} faults of {len(rows)} kinds in "
            f"{self.seconds / 60:.1f} minutes",
            f"{self.acknowledged} commits acknowledged, {self.unknown} unknown, "
            f"{self.snapshots} snapshots of the accounts",
            f"the primary was lost {self.primaries_lost} times: {self.restores} restores from two "
            f"safekeepers checked, {self.segments_compared} pairs of segments compared",
            f"{self.wal_bytes / 1e6:.0f} MB of WAL, a proposer was started again "
            f"{self.proposer_restarts} times",
            f"lost: {'not known' if self.lost is None else self.lost}",
            f"{self.verdict} (exit code {self.exit_code})",
        ]
        return "\n".join(lines)


def _summary(occasions: Sequence[Occasion]) -> dict[str, float]:
    def most(of: Callable[[Occasion], float]) -> float:
        return round(max(map(of, occasions)), 3)

    return {
        "times": len(occasions),
        "commits": sum(one.commits for one in occasions),
        "unknown": sum(one.unknown for one in occasions),
        "longest_stall_s": most(lambda one: one.stall_s),
        "resumed_s": most(lambda one: one.resumed_s),
        "whole_s": most(lambda one: one.whole_s),
    }


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a text table: words to the left, figures to the right."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        first, *rest = zip(row, widths, strict=True)
        return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)])

    return "\n".join([line(head), line(["-" * width for width in widths]), *map(line, rows)])
