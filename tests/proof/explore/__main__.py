"""Explore the shipping cores exhaustively, within bounds.

    python -m tests.proof.explore                    the small runs, one after the other
    python -m tests.proof.explore --run NAME         one of them, with progress
    python -m tests.proof.explore --all --jobs 2     all of them; a finished one is not run again

Every run visits each state that its bounds allow, breadth first, and each event that is possible
there. Results are kept below build/prove, under a name that changes with the sources. So an
interrupted proof goes on with the run that it was in.

Exit codes: 0 if all states are visited without a finding, 1 if a core broke, 4 if --seconds or
--states stopped it. Exit code 2 means lost or forked WAL; the output has the shortest story.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path

from tests.proof.explore.breadth_first import Result, explore
from tests.proof.explore.runs import ALL, LARGE, SMALL
from tests.support.folders import ROOT
from tests.support.program_parser import program_parser

KEPT = ROOT / "build/prove"
PROGRESS_S = 30.0
LEFT_OUT = {"tests.proof.explore.__main__", "tests.proof.explore.runs"}  # names alone
SOURCES = ("walkeeper_", "tests.proof.explore", "tests.proof.sim")


def result_file(world: str) -> Path:
    """Return the file of a world's result, named by its bounds and the loaded sources."""
    digest = hashlib.sha256(str(ALL[world]).encode())
    names = (name for name in sys.modules if name.startswith(SOURCES))
    for name in sorted(set(names) - LEFT_OUT):
        file = sys.modules[name].__file__
        assert file is not None, f"{name=}"
        digest.update(Path(file).read_bytes())
    return KEPT / f"{world}-{digest.hexdigest()[:12]}.json"


def tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def code_of(result: Result) -> int:
    if result.violation is not None:
        return 2
    if result.broken:
        return 1
    return 0 if result.is_exhausted else 4


def run_one(name: str, *, seconds: float | None, states: int | None) -> int:
    bounds = ALL[name]
    tell(f"{name}: {bounds}")
    result = explore(bounds, states_max=states, seconds_max=seconds, tell=tell)
    for number, action in enumerate(result.story, 1):
        tell(f"  {number:3d}. {shown(action)}")
    if result.violation is not None:
        tell(f"VIOLATION {result.violation}")
    for text, count in result.broken.items():
        tell(f"BROKEN {count}x {text}")
    tell(row(name, result))
    if result.is_exhausted:
        keep(name, result)
    return code_of(result)


def shown(action: tuple[object, ...]) -> str:
    name, *words = action
    return f"{name} " + " ".join(w.hex() if isinstance(w, bytes) else str(w) for w in words)


def row(name: str, result: Result) -> str:
    verdict = "nothing found" if result.is_exhausted else "stopped"
    verdict = "VIOLATION" if result.violation is not None else verdict
    return (
        f"{name:28} {result.states:>11,} states {result.steps:>12,} steps "
        f"depth {result.depth:>3} {result.seconds:>7.1f} s  {verdict}"
    )


def keep(name: str, result: Result) -> None:
    KEPT.mkdir(parents=True, exist_ok=True)
    facts = asdict(result) | {"bounds": asdict(result.bounds), "row": row(name, result)}
    facts["collision"] = result.collision
    result_file(name).write_text(json.dumps(facts, indent=1) + "\n")


def kept(name: str) -> str | None:
    """Return the row of a finished run of these very sources without a finding, or None."""
    path = result_file(name)
    if not path.exists():
        return None
    facts = json.loads(path.read_text())
    return None if facts["broken"] else str(facts["row"])


def run_apart(name: str) -> tuple[str, int, str]:
    """Run it in a process of its own, whose memory is given back; show progress now and then."""
    known = kept(name)
    if known is not None:
        return name, 0, known + " (kept)"
    words = [sys.executable, "-m", "tests.proof.explore", "--run", name]
    running = subprocess.Popen(
        words, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert running.stdout is not None
    lines, told_s = deque[str](maxlen=60), time.monotonic()
    for line in running.stdout:
        lines.append(line.rstrip())
        if time.monotonic() - told_s > PROGRESS_S:
            told_s = time.monotonic()
            tell(f"  {name}: {lines[-1]}")
    code = running.wait()
    return name, code, "\n".join(lines) if code else lines[-1]


def main() -> int:
    parser = program_parser("tests.proof.explore", __doc__)
    parser.add_argument("--run", choices=sorted(ALL), help="this one, with progress")
    parser.add_argument("--all", action="store_true", help="the large ones as well")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time")
    parser.add_argument("--seconds", type=float, help="with --run: when to stop")
    parser.add_argument("--states", type=int, help="with --run: after how many states to stop")
    arguments = parser.parse_args()
    if arguments.run is not None:
        return run_one(arguments.run, seconds=arguments.seconds, states=arguments.states)
    names = [*(LARGE if arguments.all else ()), *SMALL]
    worst = 0
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for done in as_completed([pool.submit(run_apart, name) for name in names]):
            _, code, text = done.result()
            tell(text)
            worst = max(worst, code)
    return worst


if __name__ == "__main__":
    sys.exit(main())
