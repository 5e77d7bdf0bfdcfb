"""The command line of everything that runs stories by seed: one story, or a search.

main(prog, doc, run, flags) -> the exit code
"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from tests.proof.sim.search import Run, search

Flags = Mapping[str, tuple[str, str]]  # --flag: (the keyword of `run`, the help)


class RunStory(Protocol):
    """Run the story of a seed; `asked` are the keywords of the flags."""

    def __call__(
        self, seed: int, *, show: Callable[[str], None] | None = None, **asked: bool
    ) -> Run: ...


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(prog: str, doc: str | None, run: RunStory, flags: Flags) -> int:
    """Return 0 if nothing is found, else the exit code of the story that failed."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {prog}",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, help="run this one and show it")
    parser.add_argument("--seeds", type=int, default=10**9, help="how many to search")
    parser.add_argument("--from", type=int, dest="base", help="the first seed (default: random)")
    parser.add_argument("--minutes", type=float, default=1.0, help="when to stop searching")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")
    parser.add_argument("--json", type=Path, help="write the search's figures to this file")
    for flag, (option, what) in flags.items():
        parser.add_argument(flag, dest=option, action="store_true", help=what)
    arguments = parser.parse_args()
    given = [flag for flag, (option, _) in flags.items() if getattr(arguments, option)]
    asked = {flags[flag][0]: True for flag in given}
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
        run=run,
    )
    if arguments.json is not None:
        tally.save(arguments.json, failed)
    if failed is not None:
        _tell(f"{failed.text}\nfailed (exit code {failed.code}) after {tally.seeds} seeds: "
              f"python -m {' '.join([prog, *given, '--seed'])} {failed.seed}")  # fmt: skip
        return failed.code
    _tell(f"{tally.table()}\n{tally.line()}: nothing found")
    return 0
