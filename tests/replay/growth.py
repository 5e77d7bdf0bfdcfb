"""How the cost of answers grows with the archive: CPU seconds at several sizes, and a plot of them.

    python -m tests.replay.growth --sizes 1,4,16 --executors 2,4 --keep DIR --plot growth.svg

A size is gigabytes of pgbench's WAL, beside a table `rare` that changes once. Each answer is a
process of its own, and its CPU time is that of all its processes, Java and executors included. So
figures of a busy machine can be compared. With --executors Spark's own standalone master and so
many workers answer as well. --keep uses the archives of an earlier run again. The program prints a
table in Markdown.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from tests.replay.scale import made_wal

Figures = dict[str, dict[float, float]]
"""CPU seconds by answer and gigabytes."""
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_STAT_SESSION, _STAT_UTIME, _STAT_STIME = 3, 11, 12  # behind the name in /proc/PID/stat
POLL_S = 0.1
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 420, 64, 250, 20, 44
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f")
OVER_SPARK = """
import os, sys
from pyspark_pgwal import read_once
from pyspark_pgwal.session import session
master, wal, answer = sys.argv[1:]
made = session(master, spark_executorEnv_PYTHONPATH=os.environ.get("PYTHONPATH", ""))
made.sparkContext.setLogLevel("ERROR")
if answer == "table_at":
    found = read_once.table_at(made, path=wal, relation="rare", parts="8")
else:
    found = read_once.changes(made, path=wal, relation="rare", parts="8", allowMissing="true")
print(found.count())
made.stop()
"""


def cpu_seconds(command: Sequence[str]) -> float:
    """Run a command in a session of its own; return the CPU time of all its processes."""
    spent: dict[int, float] = {}
    with tempfile.TemporaryFile() as told:
        with subprocess.Popen(
            command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=told
        ) as process:
            while process.poll() is None:
                spent.update(_spent_in(process.pid))
                time.sleep(POLL_S)
        if process.returncode:
            told.seek(0)
            error = told.read().decode(errors="replace")
            raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}\n{error}")
    return sum(spent.values())


def _spent_in(session: int) -> dict[int, float]:
    """Return the CPU seconds of each process of a session so far."""
    found = {}
    for path in Path("/proc").iterdir():
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except (OSError, NotADirectoryError):
            continue
        if path.name.isdigit() and int(fields[_STAT_SESSION]) == session:
            ticks = int(fields[_STAT_UTIME]) + int(fields[_STAT_STIME])
            found[int(path.name)] = ticks * _TICK_S
    return found


def questions(wal: Path, folder: Path, executors: Sequence[int]) -> Iterator[tuple[str, list[str]]]:
    """Yield each answer's name and its command."""
    history = [sys.executable, "-m", "walkeeper_cli", "history"]
    path, output = ["--path", str(wal)], str(folder / "out.parquet")
    index = ["--index", str(folder / "index.parquet")]
    yield "stats", [*history, "stats", *path]
    rare = ["changes", "--table", "rare", "--allow-missing", "-o", output]
    for name, own in (("table-at rare", ["table-at", "rare", "-o", output]), ("changes", rare)):
        yield name, [*history, *own, *path]
        yield f"{name}, with an index", [*history, *own, *path, *index]
    yield "table-at of pgbench_accounts", [*history, "table-at", "pgbench_accounts", *path,
                                           "-o", output]  # fmt: skip
    for count in executors:
        for answer in ("table_at", "changes"):
            master = f"local-cluster[{count},1,1024]"
            command = [sys.executable, "-c", OVER_SPARK, master, str(wal), answer]
            yield f"read_once.{answer}, {count} executors", command


def measured(sizes: Sequence[float], executors: Sequence[int], keep: Path) -> Figures:
    """Return the figures of all sizes, and print each as it is there."""
    figures: Figures = {}
    for size in sizes:
        wal = keep / f"wal-{size:g}"
        if not wal.exists():
            made_wal(wal, int(size * 1024))
        bytes_ = sum(each.stat().st_size for each in wal.iterdir() if each.is_file())
        sys.stderr.write(f"{size:g}: {bytes_ / (1 << 30):.2f} GB of WAL\n")
        with tempfile.TemporaryDirectory(prefix="walkeeper_growth_") as folder:
            for name, command in questions(wal, Path(folder), executors):
                if name not in figures or "index" in name:
                    cpu_seconds(command)  # It compiles, or writes the index.
                spent = cpu_seconds(command)
                figures.setdefault(name, {})[bytes_ / (1 << 30)] = spent
                sys.stderr.write(f"  {name:40} {spent:8.2f} s\n")
    return figures


def markdown(figures: Figures) -> str:
    """Return a table with a row for each answer."""
    sizes = sorted({size for own in figures.values() for size in own})
    lines = ["| CPU s of | " + " | ".join(f"{size:.2f} GB" for size in sizes) + " |"]
    lines.append("|---" * (len(sizes) + 1) + "|")
    for name, own in figures.items():
        lines.append(f"| {name} | " + " | ".join(f"{own[s]:.1f}" for s in sizes) + " |")
    return "\n".join(lines) + "\n"


def plot(figures: Figures) -> str:
    """Return the figures as an SVG of lines, gigabytes to the right and CPU seconds upwards."""
    points = [(size, spent) for own in figures.values() for size, spent in own.items()]
    right = max((size for size, _ in points), default=1.0)
    top = max((spent for _, spent in points), default=1.0)
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(size: float) -> float:
        return LEFT + wide * size / right

    def y(spent: float) -> float:
        return TOP + high * (1 - spent / top)

    made = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            'font-family="sans-serif" font-size="12">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']  # fmt: skip
    for part in (0, 0.25, 0.5, 0.75, 1):
        at = y(top * part)
        made.append(f'<line x1="{LEFT}" x2="{LEFT + wide}" y1="{at:.1f}" y2="{at:.1f}" '
                    'stroke="#ddd"/>')  # fmt: skip
        made.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{top * part:.0f}'
                    "</text>")  # fmt: skip
    for size in sorted({size for size, _ in points}):
        made.append(f'<text x="{x(size):.1f}" y="{TOP + high + 18}" text-anchor="middle">'
                    f"{size:.1f}</text>")  # fmt: skip
    made.append(f'<text x="{LEFT + wide / 2}" y="{HEIGHT - 8}" text-anchor="middle">'
                "gigabytes of WAL; upwards: seconds of CPU time</text>")  # fmt: skip
    for number, (name, own) in enumerate(figures.items()):
        colour = COLOURS[number % len(COLOURS)]
        dash = ' stroke-dasharray="5 3"' if number >= len(COLOURS) else ""
        places = " ".join(f"{x(size):.1f},{y(spent):.1f}" for size, spent in sorted(own.items()))
        made.append(f'<polyline points="{places}" fill="none" stroke="{colour}"{dash} '
                    'stroke-width="2"/>')  # fmt: skip
        for size, spent in own.items():
            made.append(f'<circle cx="{x(size):.1f}" cy="{y(spent):.1f}" r="3" fill="{colour}"/>')
        at = TOP + 12 + 20 * number
        made.append(f'<text x="{LEFT + wide + 14}" y="{at}" fill="{colour}">{escape(name)}</text>')
    return "\n".join([*made, "</svg>\n"])


def main(arguments: list[str]) -> None:
    """Measure, print a table, and write the plot."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sizes", default="1,4,16", help="gigabytes, separated by commas")
    parser.add_argument("--executors", default="", help="such as 2,4; without them no Spark")
    parser.add_argument("--keep", type=Path, help="a folder for the archives")
    parser.add_argument("--plot", type=Path, help="an SVG to write")
    given = parser.parse_args(arguments)
    sizes = [float(each) for each in given.sizes.split(",")]
    executors = [int(each) for each in given.executors.split(",") if each]
    with tempfile.TemporaryDirectory(prefix="walkeeper_growth_") as name:
        keep = given.keep or Path(name)
        keep.mkdir(parents=True, exist_ok=True)
        figures = measured(sizes, executors, keep)
    sys.stdout.write(markdown(figures))
    if given.plot is not None:
        given.plot.write_text(plot(figures))


if __name__ == "__main__":
    main(sys.argv[1:])
