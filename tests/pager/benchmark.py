"""The cost of a pager: WAL applied and folded, pages requested at random.

    python -m tests.pager.benchmark --directory DIR    (as python -m tests.replay.benchmark makes)

All in one process and without a network. WAL is received, applied and put into the horizon's pages.
Then pages of random blocks at random LSNs of the remaining history are read. Processor time is
beside wall-clock time, for machines that do other work.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import tempfile
import time
from pathlib import Path

from walkeeper_pager.base_pages import BasePages
from walkeeper_pager.page_names import NoSuchPage, NotReplayed, Place
from walkeeper_pager.pager import Pager
from walkeeper_replay.catalogs.catalog_history import CatalogHistory
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import make_plan

HISTORY_BYTES = 256 << 20
ASKED = 2000


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Stopwatch:
    def __init__(self) -> None:
        self.wall_s, self.cpu_s = time.monotonic(), time.process_time()

    def shown(self) -> str:
        wall_s, cpu_s = time.monotonic() - self.wall_s, time.process_time() - self.cpu_s
        return f"{wall_s:.1f} s ({cpu_s:.1f} s of processor)"


def follow(pager: Pager, wal: str) -> int:
    """Feed the WAL as it would arrive, a segment at a time; return how many bytes."""
    files, total = open_files(wal), 0
    for segment in make_plan(files, start_lsn=pager.start_lsn).segments:
        data = files.read(segment.path).tobytes()
        pager.wal.write(segment.timeline, segment.first_lsn, data)
        pager.apply()
        while pager.trim():
            pass
        total += len(data)
    return total


def ask(pager: Pager, place: Place, blocks: int) -> tuple[list[float], int]:
    draw, times, refused = random.Random(1), [], 0
    for _ in range(ASKED):
        lsn = draw.randrange(pager.horizon_lsn, pager.applied_lsn)
        begun_s = time.monotonic()
        try:
            pager.page(place, draw.randrange(blocks), lsn)
        except (NoSuchPage, NotReplayed):
            refused += 1
        times.append(time.monotonic() - begun_s)
    return sorted(times), refused


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.pager.benchmark")
    parser.add_argument("--directory", type=Path, required=True)
    given = parser.parse_args()
    wal, base = str(given.directory / "wal"), BasePages(str(given.directory / "backup"))
    with tempfile.TemporaryDirectory() as scratch:
        pager = Pager(Path(scratch), base, history_bytes=HISTORY_BYTES)
        watch = Stopwatch()
        total = follow(pager, wal)
        say(f"{total / 1e6:.0f} MB of WAL received, applied and folded: {watch.shown()}")
        history = CatalogHistory.read(
            open_files(wal), make_plan(open_files(wal), start_lsn=base.redo_lsn),
            base=base.directory, keeps_commits=False,
        )  # fmt: skip
        catalog = history.at(history.end_lsn, history.database(history.end_lsn, "postgres"))
        for name in ("pgbench_accounts", "pgbench_branches"):
            file = catalog.find(f"public.{name}").file
            place = Place(file.tablespace, file.database, file.relfilenode)
            times, refused = ask(pager, place, 30_000 if name.endswith("accounts") else 20)
            middle, late = times[len(times) // 2], times[len(times) * 99 // 100]
            say(
                f"{name}: {ASKED} pages at random LSNs, median {middle * 1e3:.2f} ms, 99 % below "
                f"{late * 1e3:.1f} ms; not there or refused: {refused}"
            )
        pager.close()
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        say(f"memory at most: {most:.0f} MB")


if __name__ == "__main__":
    main()
