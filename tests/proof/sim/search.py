"""Runs seeds and counts: one at a time, or many, in one process or in several.

    run(seed, show=…) -> Run            search(…) -> the first that failed, and the tally

Processes share nothing; a seed's run is the same in each of them.
"""

from __future__ import annotations

import json
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Unpack

from tests.proof.sim.oracle import NoProgress, Violation
from tests.proof.sim.story import Story
from tests.proof.sim.troubles import AskedOptions

PASSED, BROKEN, VIOLATED, STUCK = 0, 1, 2, 3


class Asked(NamedTuple):
    """A world with more in it: the option of World, and what it adds."""

    option: str
    about: str


# By the flag of the command line.
ASKED = {
    "--archive": Asked("has_archive", "WAL goes to an archive and comes back"),
    "--replace": Asked("replaces", "members are replaced"),
    "--cancel": Asked("cancels", "with --replace: replacements are taken back"),
    "--repair": Asked("repairs", "with --replace: spares take the place of silent members"),
    "--resize": Asked("resizes", "with --replace: members are added and removed too"),
    "--late": Asked("late", "with --replace: newcomers' logs begin late, and are filled"),
    "--zones": Asked("has_zones", "acknowledgements come from several zones"),
    "--close": Asked("closes", "an operator closes the log"),
    "--switch": Asked("switches", "the primary switches segments, and dies while it does"),
    "--bulk": Asked("is_bulk", "transactions are long, and servers recycle WAL as slots let them"),
    "--busy": Asked("is_busy", "processes are busy, so input arrives in large pieces"),
}
REPORT_S = 10.0


@dataclass(frozen=True)
class Run:
    """One seed's outcome; `code` is the exit code."""

    seed: int
    code: int
    oracle: str
    text: str
    events: int
    acknowledged_bytes: int
    simulated_s: float
    faults: Counter[str]
    facts: Counter[str]


def outcome_of(story: Callable[[], object]) -> tuple[int, str, str]:
    """Run a story to its end; return the exit code, the oracle that spoke, and what it said."""
    try:
        story()
    except Violation as error:
        return VIOLATED, error.oracle, f"VIOLATION {error}"
    except NoProgress as error:
        return STUCK, "Progress", f"NO PROGRESS {error}"
    except Exception:
        return BROKEN, "", traceback.format_exc()
    return PASSED, "", ""


def run(
    seed: int,
    *,
    show: Callable[[str], None] | None = None,
    **asked: Unpack[AskedOptions],
) -> Run:
    """Run the whole story of a seed; `asked` as in World."""
    return run_story(Story(seed, show=show, **asked))


def run_story(story: Story) -> Run:
    """Run it to its end, and return what came of it."""
    code, oracle, text = outcome_of(story.run)
    world, acknowledged = story.world, len(story.oracles.acknowledged.wal)
    return Run(
        seed=world.seed,
        code=code,
        oracle=oracle,
        text=text or f"acknowledged {acknowledged} bytes",
        events=world.events,
        acknowledged_bytes=acknowledged,
        simulated_s=world.now_ms / 1000,
        faults=world.faults,
        facts=world.facts,
    )


@dataclass
class Tally:
    """The seeds, events and faults that a search has seen."""

    base: int
    started_s: float = field(default_factory=time.monotonic)
    seeds: int = 0
    events: int = 0
    acknowledged_bytes: int = 0
    simulated_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    facts: Counter[str] = field(default_factory=Counter)

    def add(self, done: Run) -> None:
        self.seeds += 1
        self.events += done.events
        self.acknowledged_bytes += done.acknowledged_bytes
        self.simulated_s += done.simulated_s
        self.faults.update(done.faults)
        self.facts.update(done.facts)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started_s

    def line(self) -> str:
        """Return one line of progress."""
        return (
            f"{self.seeds} seeds, {self.events} events, "
            f"{self.events / max(self.seconds, 0.001):.0f} a second, "
            f"{sum(self.faults.values())} faults, {self.facts['elections']} elections, "
            f"{self.facts['commits acknowledged']} commits"
        )

    def table(self) -> str:
        """Return all of it as a table for people."""
        rows: list[tuple[str, object]] = [
            ("seeds", self.seeds),
            ("seconds", f"{self.seconds:.0f}"),
            ("simulated hours", f"{self.simulated_s / 3600:.1f}"),
            ("events", self.events),
            ("events a second", f"{self.events / max(self.seconds, 0.001):.0f}"),
            ("bytes acknowledged", self.acknowledged_bytes),
            *sorted(self.facts.items()),
            ("faults injected", sum(self.faults.values())),
            *((f"  {kind}", count) for kind, count in sorted(self.faults.items())),
        ]
        return "\n".join(f"{name:<44}{value:>14}" for name, value in rows)

    def save(self, path: Path, found: Run | None) -> None:
        """Save all of it for a report."""
        facts: dict[str, object] = {
            "first_seed": self.base,
            "seeds": self.seeds,
            "seconds": round(self.seconds, 1),
            "simulated_seconds": round(self.simulated_s),
            "events": self.events,
            "acknowledged_bytes": self.acknowledged_bytes,
            "faults": dict(sorted(self.faults.items())),
            "facts": dict(sorted(self.facts.items())),
            "failed": None,
        }
        if found is not None:
            facts["failed"] = {
                "seed": found.seed,
                "exit_code": found.code,
                "oracle": found.oracle,
                "text": found.text,
            }
        path.write_text(json.dumps(facts, indent=2) + "\n")


def runs(
    base: int, count: int, jobs: int, asked: Mapping[str, bool], run: Callable[..., Run] = run
) -> Generator[Run, None, None]:
    """Yield runs in the order of the seeds if there is one process, else as they finish."""
    seeds = range(base, base + count)
    if jobs == 1:
        for seed in seeds:
            yield run(seed, **asked)
        return
    waiting = iter(seeds)
    with ProcessPoolExecutor(jobs, initializer=_ignore_interrupt) as pool:
        running: set[Future[Run]] = {
            pool.submit(run, seed, **asked) for seed in islice(waiting, 2 * jobs)
        }
        try:
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                running |= {pool.submit(run, seed, **asked) for seed in islice(waiting, len(done))}
                for future in done:
                    yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _ignore_interrupt() -> None:
    """Ignore SIGINT: the parent receives it and ends the search."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def search(
    base: int,
    count: int,
    *,
    minutes: float,
    jobs: int,
    tell: Callable[[str], None],
    asked: Mapping[str, bool],
    run: Callable[..., Run] = run,
) -> tuple[Run | None, Tally]:
    """Search until a seed fails, the time is over, all are run, or SIGINT."""
    tally, told_s = Tally(base), time.monotonic()
    done = runs(base, count, jobs, asked, run)
    try:
        for one in done:
            tally.add(one)
            if one.code != PASSED:
                return one, tally
            if tally.seconds > minutes * 60:
                break
            if time.monotonic() - told_s >= REPORT_S:
                told_s = time.monotonic()
                tell(tally.line())
    except KeyboardInterrupt:
        tell("interrupted")
    finally:
        done.close()
    return None, tally
