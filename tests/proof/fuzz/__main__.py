"""The command line of the fuzzer; tests/proof/fuzz/__init__.py says what it can do."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from tests.proof.fuzz import runner
from tests.proof.fuzz.statistics import Run, table
from tests.proof.fuzz.targets import PLACES, load


def main() -> int:
    asked = _arguments()
    names = list(PLACES) if asked.target == "all" else [asked.target]
    if asked.input is not None:
        return _repeat(names, asked.input)
    if asked.keep:
        for name in names:
            runner.keep(name, _say)
        return 0
    minutes = None if asked.minutes is None else asked.minutes / len(names)
    if minutes is None and asked.runs is None:
        minutes = 1.0 / len(names)
    bound, runs = runner.Bound(asked.runs, minutes, asked.seed), list[Run]()
    for name in names:
        _say(f"{name}: {load(name).about}")
        run = runner.run_plainly if asked.plain else runner.run
        runs.append(run(name, bound, _say))
    _say("\n" + table(runs))
    if asked.json is not None:
        asked.json.write_text(json.dumps([run.document() for run in runs], indent=2) + "\n")
    return 1 if any(run.crashes or run.failed for run in runs) else 0


def _repeat(names: list[str], path: Path) -> int:
    for name in names:
        load(name).run(path.read_bytes())
        _say(f"{name}: {path} does no harm")
    return 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.proof.fuzz", description=__doc__)
    parser.add_argument("target", choices=["all", *PLACES])
    bound = parser.add_mutually_exclusive_group()
    bound.add_argument("--minutes", type=float, help="for all targets together  [default: 1]")
    bound.add_argument("--runs", type=int, help="inputs for each target")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 2**31, help="of the run")
    parser.add_argument("--plain", action="store_true", help="without atheris and its coverage")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the table for programs")
    parser.add_argument("--input", type=Path, metavar="FILE", help="run this input once")
    parser.add_argument("--keep", action="store_true", help="minimise what was found into corpus/")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
