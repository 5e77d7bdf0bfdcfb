"""The deterministic simulator of the shipping code.

    python -m tests.sim --seed 7                     one run, one line an event
    python -m tests.sim --seeds 10000 --minutes 5    a search; --jobs 2 in two processes

A line: simulated milliseconds, who, what. Who:

    skN     a safekeeper          pN      a proposer process, a new number each time it is started
    pgN     a primary             pgR     the one that was restored from the log in the end
    op      an operator who has a member replaced (--replace)
    ----    the world

What, beside what the code notes for its operator:

    boot, START         a new life              KILL      the process is killed
    CRASH               the power is cut: what was not synced may be lost, in any part
    STOP                a clean stop of a safekeeper; of a proposer, with the reason
    LOST                a safekeeper's disk, and with it its promises: it may not vote any more
    disk …, clock …     a disk that is full or stalls, a sync that fails, heartbeats that burst
    partition           the directions that are cut; held back: they are opened soon
    clone               another server with the same past, which goes on on its own
    plot                targeted trouble begins (plots.py); random faults go on beside it
    heal                the end of the safety phase: from here on everything must move on

The first line has the seed's options. Same seed, same trace, in every process.

Exit codes: 0 nothing found, 1 the code broke, 2 lost or forked WAL or a broken promise (the oracle
is named first), 3 no progress after healing.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from pathlib import Path
from typing import cast

from tests.sim.options import AskedOptions
from tests.sim.search import ASKED, run, search


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.sim",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, help="run this one and show it")
    parser.add_argument("--seeds", type=int, default=10**9, help="how many to search")
    parser.add_argument("--from", type=int, dest="base", help="the first seed (default: random)")
    parser.add_argument("--minutes", type=float, default=1.0, help="when to stop searching")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")
    parser.add_argument("--json", type=Path, help="write the search's figures to this file")
    for flag, asked_for in ASKED.items():
        parser.add_argument(flag, dest=asked_for.option, action="store_true", help=asked_for.about)
    arguments = parser.parse_args()
    flags = [flag for flag, asked_for in ASKED.items() if getattr(arguments, asked_for.option)]
    asked = cast(AskedOptions, {ASKED[flag].option: True for flag in flags})  # by names of a table
    if arguments.seed is not None:
        done = run(arguments.seed, show=_tell, **asked)
        _tell(done.text)
        return done.code
    base = secrets.randbelow(10**9) if arguments.base is None else arguments.base
    _tell(f"searching from seed {base}")
    failed, tally = search(
        base,
        arguments.seeds,
        minutes=arguments.minutes,
        jobs=arguments.jobs,
        tell=_tell,
        asked=asked,
    )
    if arguments.json is not None:
        tally.save(arguments.json, failed)
    if failed is not None:
        _tell(f"{failed.text}\nfailed (exit code {failed.code}) after {tally.seeds} seeds: "
              f"python -m tests.sim {' '.join([*flags, '--seed'])} {failed.seed}")  # fmt: skip
        return failed.code
    _tell(f"{tally.table()}\n{tally.line()}: nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
