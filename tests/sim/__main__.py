"""The deterministic simulator of the shipping code.

    python -m tests.sim --seed 7                     one run, one line an event
    python -m tests.sim --seeds 10000 --minutes 5    a search

Each line: simulated milliseconds, who, what. Who: skN a safekeeper, pN a proposer process (a new
number each time it is started), pgN a primary (pgR: restored from the log). CRASH and KILL lose
memory, CRASH also what was not synced; boot and START are new lives; STOP is a clean stop of a
safekeeper, or says why a proposer ended; `partition` lists the directions that are cut; `heal`
ends the safety phase. Everything else is what the code notes for its operator. Same seed, same
trace.

Exit codes: 0 nothing found, 1 the code broke, 2 lost or forked WAL, 3 no progress after healing.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
import traceback

from tests.sim.oracle import NoProgress, Violation
from tests.sim.story import Story


def run_seed(seed: int, *, is_shown: bool) -> tuple[int, str, int]:
    """(exit code, what was found, events)."""
    show = (lambda line: sys.stdout.write(line + "\n")) if is_shown else None
    story = Story(seed, show=show)
    try:
        story.run()
    except Violation as error:
        return 2, f"VIOLATION {error}", story.world.events
    except NoProgress as error:
        return 3, f"NO PROGRESS {error}", story.world.events
    except Exception:
        return 1, traceback.format_exc(), story.world.events
    return 0, f"acknowledged {len(story.acked.wal)} bytes", story.world.events


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
    arguments = parser.parse_args()
    if arguments.seed is not None:
        code, found, _ = run_seed(arguments.seed, is_shown=True)
        sys.stdout.write(f"{found}\n")
        return code
    base = secrets.randbelow(10**9) if arguments.base is None else arguments.base
    deadline = time.monotonic() + arguments.minutes * 60
    started, events, runs = time.monotonic(), 0, 0
    sys.stdout.write(f"searching from seed {base}\n")
    for seed in range(base, base + arguments.seeds):
        code, found, ran = run_seed(seed, is_shown=False)
        events, runs = events + ran, runs + 1
        if code:
            sys.stdout.write(f"{found}\nfailed (exit code {code}) after {runs} seeds: ")
            sys.stdout.write(f"python -m tests.sim --seed {seed}\n")
            return code
        if time.monotonic() > deadline:
            break
    rate = events / (time.monotonic() - started)
    sys.stdout.write(f"{runs} seeds, {events} events, {rate:.0f} a second: nothing found\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
