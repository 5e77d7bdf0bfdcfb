"""Compares `table-at`, `changes` and `undo` with real recoveries, over seeds.

    python -m tests.proof.recoveries --seed 7 --minutes 5       seeds 7, 8, … for five minutes
    python -m tests.proof.recoveries --seed 7 --postgres 18     one seed, a server of version 18

Each seed makes random schemas, sessions whose transactions overlap, DDL, a crash and a clock that
is set to and fro. Servers are recovered to random LSNs and times. A difference is a failure if the
answer does not say what it lacks.

Exit codes: 0 nothing was found, 1 a difference (with the command that repeats it), 2 usage.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack

from tests.proof.recoveries.seed_comparison import Figures, compared
from tests.support.installations import Unavailable, binaries
from tests.support.postgres_server import installation
from tests.support.program_parser import program_parser

DEBIANS = 15


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare seed after seed, until the minutes are over."""
    asked = _arguments(arguments)
    ends, total, seed = time.monotonic() + 60 * asked.minutes, Figures(), asked.seed
    with ExitStack() as stack:
        major = asked.postgres or (DEBIANS, 18)[asked.seed % 2]
        try:
            if major != DEBIANS:
                stack.enter_context(installation(binaries(major)))
        except Unavailable as error:
            _say(f"PostgreSQL {major}: {error}")
            if asked.postgres:
                return 2
            major = DEBIANS
        while seed == asked.seed or time.monotonic() < ends:
            try:
                found = compared(seed, keeps=asked.keep)
            except Exception:
                _say(traceback.format_exc())
                _say(f"FOUND: python -m tests.proof.recoveries --postgres {major} --seed {seed}")
                return 1
            total += found
            _say(f"seed {seed}, PostgreSQL {major}: {_shown(found)}")
            seed += 1
    _say(f"{seed - asked.seed} seeds, PostgreSQL {major}, no difference: {_shown(total)}")
    return 0


def _shown(figures: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(figures.items()))


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = program_parser("tests.proof.recoveries", __doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first one  [1]")
    parser.add_argument("--minutes", type=float, default=0.0, help="then no new seed begins  [0]")
    parser.add_argument("--postgres", type=int, help="the server's version [15 or 18, by the seed]")
    parser.add_argument("--keep", action="store_true", help="leave archive and backup in TMPDIR")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
