"""Runs the soak: every search with fresh seeds, for so many minutes.

    python -m tests.proof.soak --minutes 60
    python -m tests.proof.soak --minutes 5 --only simulator      stages whose name matches
    python -m tests.proof.soak --list

Each stage's output goes to a file below build/soak. The last lines name what was found, each with
the command that repeats it, and the stages for which no time was left.

Exit codes: 0 nothing was found, 1 something was found, 2 usage.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.proof.soak.stages import SEARCHES, WHOLE, Stage, repetitions, rotated
from tests.support.folders import ROOT
from tests.support.program_parser import program_parser

LOGS = ROOT / "build" / "soak"
LAST_LINES = 15
SEEDS = 10**9


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _arguments(arguments)
    base = secrets.randbelow(SEEDS) if asked.seed is None else asked.seed
    stages = [*SEARCHES, *rotated(WHOLE, base)]
    if asked.only:
        stages = [stage for stage in stages if re.search(asked.only, stage.name)]
    if asked.list or not stages:
        _say("\n".join(f"{stage.name:<40} {stage.about}" for stage in [*SEARCHES, *WHOLE]))
        return 0 if asked.list else 2
    LOGS.mkdir(parents=True, exist_ok=True)
    soak = Soak(stages, base, asked.minutes)
    for number, stage in enumerate(stages):
        soak.run(stage, seed=(base + 1009 * number) % SEEDS)
    return soak.summary()


class Soak:
    """One run of all stages. The shares of those that are left out go to the others."""

    def __init__(self, stages: Sequence[Stage], base: int, minutes: float) -> None:
        self._ends = time.monotonic() + 60 * minutes
        shares = sum(stage.share for stage in stages)
        self._minutes_a_share = minutes / max(shares, 1.0 if _has_whole(stages) else shares)
        self._found = list[str]()
        self._passed = list[str]()
        self._left_out = list[str]()
        _say(f"soak of {minutes:g} minutes; repeat its choice of seeds: --seed {base}")

    @property
    def _minutes_left(self) -> float:
        return (self._ends - time.monotonic()) / 60

    def run(self, stage: Stage, *, seed: int) -> None:
        """Run one stage to its end, or note why not."""
        if stage.needs_root and os.geteuid() != 0:
            self._left_out.append(f"{stage.name}: needs root")
            return
        minutes = stage.share * self._minutes_a_share
        if not stage.share and stage.needs_minutes > self._minutes_left:
            text = f"needs {stage.needs_minutes:g} minutes, {max(0, self._minutes_left):.0f} left"
            self._left_out.append(f"{stage.name}: {text}")
            return
        command = stage.words(seed=seed, minutes=minutes)
        _say(f"\n== {stage.name}: {' '.join(command)}")
        path = LOGS / (re.sub(r"\W+", "-", stage.name).strip("-") + ".log")
        started = time.monotonic()
        code = _run(command, {**os.environ, **stage.variables(seed=seed)}, path)
        spent = f"{(time.monotonic() - started) / 60:.1f} min"
        output = path.read_text(errors="replace")
        if code == 0:
            last = output.rstrip().splitlines()[-1:] or [""]
            self._passed.append(stage.name)
            _say(f"   nothing found in {spent}: {last[0][:150]}")
            return
        repeat = repetitions(stage, output, seed=seed)
        self._found += [f"{stage.name} (exit code {code}, {path}): {one}" for one in repeat]
        _say("\n".join(output.rstrip().splitlines()[-LAST_LINES:]))
        _say(f"   FOUND after {spent}; repeat it: " + "\n              ".join(repeat))

    def summary(self) -> int:
        """Print what was found and what did not run; return the exit code."""
        _say(f"\n{len(self._passed)} stages found nothing: {', '.join(self._passed)}")
        for line in self._left_out:
            _say(f"did not run: {line}")
        for line in self._found:
            _say(f"FOUND: {line}")
        return 1 if self._found else 0


def _has_whole(stages: Sequence[Stage]) -> bool:
    return any(not stage.share for stage in stages)


def _run(command: Sequence[str], environment: dict[str, str], path: Path) -> int:
    """Return the command's exit code; an interrupt ends its processes too."""
    with open(path, "wb") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            return process.wait()
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
            raise


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = program_parser("tests.proof.soak", __doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="for all of it  [60]")
    parser.add_argument("--seed", type=int, help="of the stages' seeds (default: fresh)")
    parser.add_argument("--only", metavar="REGEX", help="stages whose name matches")
    parser.add_argument("--list", action="store_true", help="name the stages")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
