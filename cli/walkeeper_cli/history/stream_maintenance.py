"""Maintenance of a lake's tables by the stream that writes them: when, and what it says.

    maintenance = StreamMaintenance(sink, Retention(86400), state / "maintenance.json")
    maintenance.advance()       between two windows: the table that has waited longest, if it is due
    maintenance.finish()        at the end of a run with --once: all tables that are due

A table is due each ten minutes, and a stream with --once finds the times of the last run in its
state. Contract: maintenance takes at most a tenth of the time. A failure goes to stderr, and the
stream goes on. It runs between two windows, so no commit of the stream meets one of maintenance.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Protocol

from walkeeper_cli.history.terminal import tell
from walkeeper_common.operator_text.counts import counted
from walkeeper_replay.lakes.table_maintenance import Maintained, Retention

MAINTENANCE = "maintenance.json"
EVERY_S = 600.0
REST = 9
"""Times the duration of one maintenance, before the next one begins."""


class Lake(Protocol):
    """A sink of tables that need maintenance."""

    retention_s: int

    def tables(self) -> list[str]: ...
    def maintain(self, name: str, retention: Retention, now_s: float) -> Maintained: ...


class StreamMaintenance:
    """The maintenance of one run."""

    def __init__(
        self, lake: Lake, retention: Retention, path: Path,
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._lake, self._retention, self._path, self._clock = lake, retention, path, clock
        self._last = _read(path)
        self._names: list[str] = []
        self._listed_s, self._rested_s = -inf, 0.0
        self._remarked = set[str]()

    def advance(self) -> None:
        """Maintain the table that has waited longest, if it is due."""
        now_s = self._clock()
        is_resting = now_s < self._rested_s <= now_s + EVERY_S
        if not is_resting and (name := self._due(now_s)) is not None:
            self._maintain(name)

    def finish(self) -> None:
        """Maintain all tables that are due."""
        while (name := self._due(self._clock())) is not None:
            self._maintain(name)

    def _due(self, now_s: float) -> str | None:
        if not self._listed_s <= now_s < self._listed_s + EVERY_S:
            try:
                self._names = self._lake.tables()
            except Exception as error:  # a place of the lake has errors of its own
                tell(f"walkeeper: no maintenance of the tables now: {error}")
                self._names = []
            self._listed_s = now_s
        waiting = [name for name in self._names if not 0 <= now_s - self._last_s(name) < EVERY_S]
        return min(waiting, key=self._last_s, default=None)

    def _last_s(self, name: str) -> float:
        return self._last.get(name, -inf)

    def _maintain(self, name: str) -> None:
        begin_s = self._clock()
        try:
            self._tell(name, self._lake.maintain(name, self._retention, begin_s))
        except Exception as error:  # each lake has errors of its own
            tell(
                f"walkeeper: {name}: its maintenance failed, and is tried again in "
                f"{EVERY_S / 60:g} minutes: {error}"
            )
        end_s = self._clock()
        self._rested_s = end_s + min(REST * (end_s - begin_s), EVERY_S)
        self._last[name] = end_s
        with suppress(OSError):  # Without its time, the next run maintains it again.
            _write(self._path, self._last)

    def _tell(self, name: str, done: Maintained) -> None:
        found = [
            f"{counted(done.merged, 'file', 'files')} merged into {done.made}" * bool(done.merged),
            f"{counted(done.expired, 'snapshot', 'snapshots')} expired" * bool(done.expired),
            f"{counted(done.removed, 'file', 'files')} removed" * bool(done.removed),
        ]
        if any(found):
            tell(f"walkeeper: {name}: {', '.join(filter(None, found))}")
        if done.remark is not None and name not in self._remarked:
            self._remarked.add(name)
            tell(f"walkeeper: {name}: {done.remark}")


def _read(path: Path) -> dict[str, float]:
    """Return the times of the last run, or none: then all tables are due."""
    try:
        return {str(name): float(at) for name, at in json.loads(path.read_text()).items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def _write(path: Path, times: dict[str, float]) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(times))
    partial.replace(path)
