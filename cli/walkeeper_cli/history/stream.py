"""`walkeeper history stream`: changes of physical WAL into files, each commit once."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from walkeeper_cli.history.replay_commands import (
    tell_of_incomplete,
    tell_of_missing,
    tell_of_remarks,
)
from walkeeper_cli.history.stream_maintenance import MAINTENANCE, StreamMaintenance
from walkeeper_cli.history.terminal import tell
from walkeeper_cli.history.wal_options import Source
from walkeeper_common.lsn import Lsn
from walkeeper_common.operator_text.counts import counted
from walkeeper_history.change_files import ChangeFiles
from walkeeper_replay.catalogs.catalog import Table
from walkeeper_replay.catalogs.catalog_history import CatalogHistory
from walkeeper_replay.catalogs.table_names import in_quotes, meant
from walkeeper_replay.changes.change_rows import FoundChanges
from walkeeper_replay.lakes.delta_mirrors import DeltaMirrors
from walkeeper_replay.lakes.iceberg_mirrors import IcebergMirrors
from walkeeper_replay.lakes.lake_mirrors import MIRROR, Mirrors
from walkeeper_replay.lakes.lake_tables import DeltaChanges, IcebergChanges
from walkeeper_replay.lakes.spooled_parts import SpooledParts
from walkeeper_replay.lakes.table_maintenance import Retention
from walkeeper_replay.redo.base import BaseDirectory
from walkeeper_replay.streams.change_windows import PAGES_MAX, ChangeStream, Scope
from walkeeper_replay.streams.one_stream import STATE, only_one
from walkeeper_replay.streams.open_changes import CHANGES_MAX_BYTES
from walkeeper_replay.streams.spooled_changes import SpooledChanges
from walkeeper_replay.table_at import TableAt
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import Plan, make_plan
from walkeeper_wal.wal_errors import DamagedWal, HistoryError

APPEND = "append"


class Sink(Protocol):
    """The target of the changes. Its position is the only record of the changes written so far."""

    @property
    def beat_s(self) -> float: ...  # between positions of a log in which the tables do not change
    def position(self) -> int: ...
    def claim(self, owner: str) -> None: ...  # by the state of a stream
    def refuse_other(self, facts: dict[str, Any]) -> None: ...
    def write(self, changes: Any, begin: int, end: int) -> None: ...
    def beat(self, end: int, facts: dict[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of the command beside its source."""

    scope: Scope
    state: Path
    save_bytes: int
    once: bool
    interval_s: float
    allows_missing: bool
    mode: str = APPEND
    pages_max: int = PAGES_MAX
    changes_max_bytes: int = CHANGES_MAX_BYTES
    retention: Retention | None = None
    """The time that replaced files stay in a lake, or None: this stream does not maintain it."""


class Streaming:
    """One run: the state, the sink, and how far each of them is."""

    def __init__(self, source: Source, asked: Asked, sink: Sink) -> None:
        self._source, self._asked, self._sink = source, asked, sink
        self._files = open_files(source.path)
        self._path = asked.state / STATE
        sink.claim(_owner(asked.state))
        if isinstance(sink, Mirrors):
            sink.load_again = self._table_now
        self._written = sink.position()
        self._stream = self._opened()
        self._saved, self._beat_at = self._stream.position, 0.0
        self._is_checked = False
        self._maintenance = _maintenance(sink, asked)
        self.changes = 0
        self.is_complete = True
        """False once a change that was written is not all known, as its coverage says."""

    def _opened(self) -> ChangeStream:
        asked = self._asked
        stream = ChangeStream.open(
            self._path, asked.scope, pages_max=asked.pages_max,
            changes_max_bytes=asked.changes_max_bytes,
        )  # fmt: skip
        if stream.position > self._written:
            raise HistoryError(
                f"the sink ends at {Lsn(self._written)}, before {Lsn(stream.position)} in "
                f"{self._path}: remove the state, and the stream reads all WAL again"
            )
        return stream

    def run(self, wait: Callable[[], None]) -> None:
        """Write what is new, then call `wait`, for ever; end at the log's end with --once."""
        failed: str | None = None
        while True:
            try:
                while self.advance():
                    failed = None
                    self._maintain()
            except DamagedWal as error:  # A segment may be half written or renamed meanwhile.
                if failed == str(error) or self._asked.once:
                    raise
                failed = str(error)
            if self._asked.once:
                self.save()
                if self._maintenance is not None:
                    self._maintenance.finish()
                return
            self._maintain()
            wait()

    def _maintain(self) -> None:
        if self._maintenance is not None:
            self._maintenance.advance()

    def advance(self) -> bool:
        """Write one window; return False if there is no new WAL."""
        begin = max(self._written, self._asked.scope.start_lsn)
        asked = self._asked
        with (
            SpooledChanges(asked.state, begin) as spooled,
            SpooledParts(asked.state, begin, asked.changes_max_bytes) as parts,
        ):
            return self._advance(begin, spooled, parts)

    def _advance(self, begin: int, spooled: SpooledChanges, parts: SpooledParts) -> bool:
        stream, before, sink = self._stream, self._stream.position, self._sink

        def take(found: FoundChanges) -> None:
            assert stream.database is not None, "a window was read"
            if isinstance(sink, Mirrors):
                parts.take(found)
            else:
                spooled.take(found, stream.database.name)
                doubts = found.incomplete()
                tell_of_incomplete(doubts)
                self.is_complete &= not doubts

        rewritten = stream.advance_into(self._files, self._plan(), take)
        if stream.position <= before:
            self._beat_when_due()  # The last windows may have had no change.
            return False
        self._tell_of_missing()
        if not before or not self._is_checked:
            sink.refuse_other(self._facts())
            self._is_checked = True
        if isinstance(sink, Mirrors):
            if not begin and self._asked.scope.base is not None:
                self._load(sink)
            elif len(parts) or rewritten:
                parts.rewritten = rewritten
                sink.write(parts, begin, stream.position)
        elif len(spooled):
            sink.write(spooled.reader(), begin, stream.position)
        count = len(spooled) + len(parts)
        self.changes += count
        if count:
            self.beat()
        self._beat_when_due()
        if stream.position - self._saved >= self._asked.save_bytes:
            self.save()
        return True

    def _load(self, sink: Mirrors) -> None:
        """Write the tables of the base backup as they are at the end of the first window."""
        scope, position = self._asked.scope, self._stream.position
        history = CatalogHistory.read(
            self._files, self._plan(), base=self._base(), until=position, keeps_commits=False
        )
        tables = history.at(position, history.database(position, scope.database)).tables()
        owners = [(each.schema, each.name, each.oid) for each in tables]
        asked = [found for name in scope.tables for found in meant(name, owners)]
        for schema, name, _ in asked if scope.tables else owners:
            sink.load(*self._table_now(f"{in_quotes(schema)}.{in_quotes(name)}", history))

    def _table_now(
        self, name: str, history: CatalogHistory | None = None
    ) -> tuple[Table, Any, int]:
        """Return a table, its rows at the stream's position, and that position."""
        past = TableAt.open(
            self._source.path, self._plan(), name, lsn=self._stream.position,
            database=self._asked.scope.database, base=self._base(), history=history,
        )  # fmt: skip
        return past.table, past.whole(), past.lsn

    def _base(self) -> BaseDirectory | None:
        base = self._asked.scope.base
        return None if base is None else BaseDirectory(base)

    def _beat_when_due(self) -> None:
        if self._stream.position > self._written and time.monotonic() > self._beat_at:
            self.beat()

    def beat(self) -> None:
        """Write the position, also of a log without changes of these tables."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._written = self._stream.position
        self._sink.beat(self._written, {**self._facts(), "time": now})
        self._beat_at = time.monotonic() + self._sink.beat_s

    def save(self) -> None:
        """Save the state, never before the sink has all that the state has read."""
        if self._stream.position > self._saved:
            if self._stream.position > self._written:
                self.beat()
            self._stream.save()
            self._saved = self._stream.position

    def close(self) -> None:
        """Let go of the state, which is as it was saved last."""
        self._stream.close()

    def _facts(self) -> dict[str, Any]:
        stream, scope = self._stream, self._asked.scope
        return {
            "system": str(stream.system_id),
            "database": stream.database.name if stream.database else None,
            "tables": list(scope.tables),
        }

    def _plan(self) -> Plan:
        base = self._base()
        start = None if base is None else base.redo_lsn
        return make_plan(self._files, timeline=self._source.timeline, start_lsn=start)

    def _tell_of_missing(self) -> None:
        missing, remarks = self._stream.missing, self._stream.remarks
        if self._asked.mode == MIRROR:
            missing = [each for each in missing if not each.is_read_again]
            remarks = [each for each in remarks if not each.is_read_again]
        tell_of_remarks(remarks)
        if not missing:
            return
        tell_of_missing(missing)
        if not self._asked.allows_missing:
            raise HistoryError(
                "this WAL does not describe all changes: give a base backup (--base), or go on "
                "without them (--allow-missing)"
            )


def _maintenance(sink: Sink, asked: Asked) -> StreamMaintenance | None:
    if asked.retention is None or isinstance(sink, ChangeFiles):
        return None
    lake: Any = sink
    return StreamMaintenance(lake, asked.retention, asked.state / MAINTENANCE)


def retention_of(sink: Sink, asked_s: float | None) -> Retention | None:
    """Return what --retention means for a sink: without it (None) the default, and 0 for off.

    Raise HistoryError if nothing is ever removed there.
    """
    if isinstance(sink, ChangeFiles):
        if asked_s is not None:
            raise HistoryError(
                "--retention is for delta: and iceberg:. Here each file has changes of its own, "
                "and no later one replaces it"
            )
        return None
    if asked_s is None:
        lake: Any = sink
        return Retention(lake.retention_s, is_asked=False)
    if not asked_s:
        tell(
            "walkeeper: --retention off: files that are replaced stay in the lake until VACUUM "
            "(Delta) or expire_snapshots (Iceberg) removes them elsewhere"
        )
        return None
    return Retention(int(asked_s))


def open_sink(url: str, mode: str = APPEND) -> Sink:
    """Return the sink that --to names; HistoryError if it cannot be reached."""
    kind, _, rest = url.partition(":")
    if mode != APPEND:
        return _open_mirrors(url, mode)
    if kind == "delta":
        return DeltaChanges(rest)
    if kind == "iceberg":
        catalog, slash, name = rest.partition("/")
        if not (slash and "." in name):
            raise HistoryError(f"--to {url}: not iceberg:CATALOG/NAMESPACE.TABLE")
        return IcebergChanges(catalog, name)
    return ChangeFiles.open(url)


def _open_mirrors(url: str, mode: str) -> Sink:
    kind, _, rest = url.partition(":")
    catalog, _, namespace = rest.partition("/")
    if kind == "delta":
        return DeltaMirrors(rest, mode)
    if kind == "iceberg" and namespace:
        return IcebergMirrors(catalog, namespace, mode)
    raise HistoryError(
        f"--to {url}: --mode {mode} needs tables of a lake: name delta:URL or "
        "iceberg:CATALOG/NAMESPACE"
    )


def _owner(state: Path) -> str:
    """Return the name of a state: the host and folder where the stream began."""
    path = state / "owner"
    if not path.exists():
        path.write_text(f"{socket.gethostname()}:{state.resolve()}")
    return path.read_text()


def stream(source: Source, asked: Asked, sink: Sink) -> int:
    """Run until Ctrl-C, or up to the end of the log."""
    with only_one(asked.state):
        run = Streaming(source, asked, sink)
        with closing(run):
            run.run(lambda: time.sleep(asked.interval_s))
        changes = counted(run.changes, "change", "changes")
        tell(f"walkeeper: {changes} up to {Lsn(run._stream.position)}")
    return int(not run.is_complete and not asked.allows_missing)
