"""The figures of a benchmark: a table for people, JSON for programs, a plot."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from walkeeper_common.errors import Refused
from walkeeper_lab.bench.disk import Disk
from walkeeper_lab.bench.pairs import Series

Pair = tuple[str, str]
"""A side, and the side that it is compared with."""


@dataclass(frozen=True, slots=True)
class Report:
    """One run. The report shows the ratio of `ours` to `theirs`, and of each pair in `also`."""

    title: str
    disk: Disk
    cpus: int
    postgresql: str | None
    rounds: int
    sides: Sequence[str]
    ours: str
    theirs: str
    series: Sequence[Series]
    also: Sequence[Pair] = ()

    def headline(self) -> str:
        server = "" if self.postgresql is None else f"PostgreSQL {self.postgresql}, "
        return (
            f"{self.title}; {', '.join(self.sides)} in turn, {self.rounds} rounds. {server}"
            f"{self.cpus} CPUs, {self.disk}"
        )

    def table(self) -> Table:
        """Return a table with a line for each figure: the medians, and the median of ratios."""
        table = Table(
            title=self.headline(),
            title_justify="left",
            caption=f"ratio: {self.ours} to {self.theirs}, above 1 is better for {self.ours}",
            caption_justify="left",
        )
        table.add_column("")
        table.add_column("")
        for side in self.sides:
            table.add_column(side, justify="right")
        table.add_column("ratio", justify="right")
        for pair in self.also:
            table.add_column(f"ratio, {self._named(pair)}", justify="right")
        for series in self.series:
            cells = [f"{series.median(side):.4g}" if side in series.values else "-"
                     for side in self.sides]  # fmt: skip
            pairs = ((self.ours, self.theirs), *self.also)
            ratios = [_ratio(series, pair) for pair in pairs]
            table.add_row(series.what, series.unit, *cells, *ratios)
        return table

    def _named(self, pair: Pair) -> str:
        side, other = pair
        return side if other == self.theirs else f"{side} to {other}"

    def save_json(self, path: str) -> None:
        document = {
            "title": self.title,
            "disk": asdict(self.disk),
            "cpus": self.cpus,
            "postgresql": self.postgresql,
            "rounds": self.rounds,
            "figures": [
                {
                    "what": series.what,
                    "unit": series.unit,
                    "values": series.values,
                    "ratio": _ratio(series, (self.ours, self.theirs)),
                    **{f"ratio, {self._named(p)}": _ratio(series, p) for p in self.also},
                }
                for series in self.series
            ],
        }
        _written(path, json.dumps(document, indent=1).encode() + b"\n")

    def save_plot(self, path: str) -> None:
        """Save a plot with bars for each figure and a dot for each round.

        The file's suffix chooses the format. Raise Refused if the file cannot be written.
        """
        from matplotlib.figure import Figure

        shown = [series for series in self.series if series.what and series.values]
        figure = Figure(figsize=(4 * len(shown), 4.5), layout="constrained")
        for number, series in enumerate(shown, 1):
            axes = figure.add_subplot(1, len(shown), number)
            for at, side in enumerate(self.sides):
                if side in series.values:
                    axes.bar(at, series.median(side))
                    axes.plot([at] * self.rounds, series.values[side], "k.", markersize=4)
            axes.set_xticks(range(len(self.sides)), self.sides, rotation=20, ha="right")
            axes.set_title(f"{series.what}\n{_ratio(series, (self.ours, self.theirs))}x")
            axes.set_ylabel(series.unit)
            axes.set_ylim(bottom=0)
        figure.suptitle(self.headline(), wrap=True, fontsize=9)
        try:
            figure.savefig(path)
        except (OSError, ValueError) as error:
            raise Refused(f"--plot: {error}") from error


def _ratio(series: Series, pair: Pair) -> str:
    if not set(pair) <= series.values.keys():
        return "-"
    return f"{series.ratio(*pair):.2f}"


def check_outputs(json_path: str | None, plot_path: str | None) -> None:
    """Check before minutes of measuring that the figures can be saved; raise Refused if not."""
    for option, path in (("--json", json_path), ("--plot", plot_path)):
        directory = os.path.dirname(path or "") or "."
        if path and not os.access(directory, os.W_OK):
            raise Refused(f"{option}: {directory} is not a writable directory")
    if plot_path:
        from matplotlib.figure import Figure

        known = Figure().canvas.get_supported_filetypes()
        if Path(plot_path).suffix.lstrip(".").lower() not in known:
            raise Refused(f"--plot: {plot_path} is none of {', '.join(sorted(known))}")


def _written(path: str, data: bytes) -> None:
    try:
        Path(path).write_bytes(data)
    except OSError as error:
        raise Refused(f"--json: {error}") from error
