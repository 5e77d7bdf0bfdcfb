"""libFuzzer's output about a run, and the table that is made of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

STATUS = re.compile(
    r"#(?P<inputs>\d+)\s+\S+\s+cov: (?P<edges>\d+) ft: (?P<features>\d+) "
    r"corp: (?P<corpus>\d+)/\S+.*?(?:exec/s: (?P<speed>\d+))?"
)
DONE = re.compile(r"Done (?P<inputs>\d+) runs in (?P<seconds>\d+) second")
ARTIFACT = re.compile(r"Test unit written to (?P<path>\S+)")


@dataclass(slots=True)
class Run:
    """One target's run, from the lines of its process."""

    target: str
    inputs: int = 0
    seconds: float = 0.0
    edges: int = 0
    features: int = 0
    corpus: int = 0
    crashes: list[str] = field(default_factory=list)
    failed: str = ""  # how the process ended when that was no finding

    def read(self, line: str) -> bool:
        """Read a line; return True if it said how far the run is."""
        if found := ARTIFACT.search(line):
            self.crashes.append(found["path"])
        if found := DONE.search(line):
            self.inputs = int(found["inputs"])
        found = STATUS.match(line)
        if not found:
            return False
        self.inputs = max(self.inputs, int(found["inputs"]))
        self.edges, self.features = int(found["edges"]), int(found["features"])
        self.corpus = int(found["corpus"])
        return True

    @property
    def speed(self) -> float:
        return self.inputs / self.seconds if self.seconds else 0.0

    def document(self) -> dict[str, object]:
        return {**asdict(self), "inputs_per_s": round(self.speed)}


def table(runs: Sequence[Run]) -> str:
    head = ("target", "inputs", "inputs/s", "edges", "features", "crashes", "corpus")
    rows = [head]
    for run in runs:
        rows.append(
            (
                run.target,
                f"{run.inputs:,}",
                f"{run.speed:,.0f}",
                f"{run.edges}",
                f"{run.features}",
                run.failed or f"{len(run.crashes)}",
                f"{run.corpus}",
            )
        )
    seconds = sum(run.seconds for run in runs)
    inputs = sum(run.inputs for run in runs)
    crashes = sum(len(run.crashes) for run in runs)
    speed = f"{inputs / seconds:,.0f}" if seconds else "0"
    rows.append(("all", f"{inputs:,}", speed, "", "", f"{crashes}", ""))
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            c.ljust(w) if i == 0 else c.rjust(w)
            for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
