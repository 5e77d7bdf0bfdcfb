"""Changes of one range of a log after another, in files, until the reader has taken the range.

    ranges = ChangeRanges(scope, state, spool)
    names = ranges.write(begin, end, files, plan, tell)      the commits in (begin, end]
    batches = read_spooled(spool, name)                      of one file, perhaps elsewhere
    ranges.finish(end)                                       the caller needs the range no more

Contract: a range that a caller wants again has the same changes, also after a death. So the state
is saved only up to where ranges are finished, and a range is made anew from there. Files have the
changes in the order of commits. Each file has a bounded part of the range, and `finish` removes the
files. Their names have that of the state, so that several states may use one spool. One process at
a time has the state. The other rules are those of change_windows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa

from walkeeper_common.lsn import Lsn
from walkeeper_history.change_files import ChangeFiles, Objects, row_groups
from walkeeper_replay.changes.change_rows import SCHEMA, FoundChanges
from walkeeper_replay.changes.incomplete_changes import Incomplete, problems_of_values
from walkeeper_replay.changes.undescribed import Undescribed, problems_of
from walkeeper_replay.redo.base import NotConsistent
from walkeeper_replay.streams.change_windows import PAGES_MAX, ChangeStream, Scope
from walkeeper_replay.streams.one_stream import STATE, name_of, only_one
from walkeeper_replay.streams.open_changes import CHANGES_MAX_BYTES
from walkeeper_replay.streams.spooled_changes import PACKED, SpooledChanges
from walkeeper_wal.sources.plan import Plan, Problem
from walkeeper_wal.sources.wal_files import WalFiles
from walkeeper_wal.wal_errors import HistoryError

SAVE_BYTES = 256 << 20
"""The state is saved after so much WAL. A restart reads the WAL since then again."""
_NAME = r"range-{}-[0-9A-F]{{16}}-([0-9A-F]{{16}})-\d{{6}}\.arrows"


class ChangeRanges:
    """The ranges of one scope, with their state in one folder and their files in the spool."""

    save_bytes = SAVE_BYTES

    def __init__(
        self, scope: Scope, state: Path, spool: str, *, pages_max: int = PAGES_MAX,
        changes_max_bytes: int = CHANGES_MAX_BYTES,
    ) -> None:  # fmt: skip
        """Take the state; raise HistoryError if another process has it, or for another scope."""
        self._scope, self._state = scope, state
        self._opened = ExitStack()
        self._opened.enter_context(only_one(state))
        try:
            self._spool, self._name = _objects(spool), name_of(state)
            self._stream = ChangeStream.open(
                state / STATE, scope, pages_max=pages_max, changes_max_bytes=changes_max_bytes
            )
        except BaseException:
            self.close()
            raise
        self._opened.callback(self._stream.close)
        self._saved = self._stream.position

    def close(self) -> None:
        """Let go of the state, which is as it was saved last."""
        self._opened.close()

    def write(
        self, begin: int, end: int, files: WalFiles, plan: Plan,
        tell: Callable[[Sequence[Undescribed], Sequence[Undescribed]], None],
    ) -> list[str]:  # fmt: skip
        """Write the changes of the commits in (begin, end]; return the names of their files.

        Both ends are those of records. `tell` takes what is missing, and what the changes do not
        show or may lack. It raises an error for missing changes that it does not accept.
        """
        stream = self._stream
        with SpooledChanges(self._state, begin) as spooled:

            def take(found: FoundChanges) -> None:
                assert stream.database is not None, "a window was read"
                spooled.take(found, stream.database.name)

            for _ in self._windows(begin, end, files, plan, take):
                tell(stream.missing, stream.remarks)
            return list(self._write_files(spooled, begin, end)) if len(spooled) else []

    def problems(self, begin: int, end: int, files: WalFiles, plan: Plan) -> list[Problem]:
        """Return the problems of the changes of the commits in (begin, end], each one once."""
        stream, incomplete, met = self._stream, list[Incomplete](), list[Problem]()

        def take(found: FoundChanges) -> None:
            incomplete.extend(found.after(begin).incomplete())

        for _ in self._windows(begin, end, files, plan, take):
            met += problems_of(stream.missing, stream.remarks, (begin, end))
        return [*dict.fromkeys(met), *problems_of_values(incomplete)]

    def _windows(
        self, begin: int, end: int, files: WalFiles, plan: Plan,
        take: Callable[[FoundChanges], None],
    ) -> Iterator[None]:  # fmt: skip
        """Advance the state to `end`, and yield after each window of commits after `begin`.

        No window has commits of both sides of `begin`. So a range that comes again, from a state
        that lags, has the same problems.
        """
        self._refuse_already_read(begin)
        stream = self._stream
        for until in (begin, end):
            part = plan.within(plan.segments[0].begin_lsn, until)
            while part is not None and (before := stream.position) < until:
                try:
                    stream.advance_into(files, part, take)
                except NotConsistent:
                    if until == end:
                        raise
                if stream.position == before:
                    break
                if stream.position > begin:
                    yield
        if stream.position != end:
            raise HistoryError(
                f"{files.shown('')}: the WAL ends at {Lsn(stream.position)}, and the query "
                f"wants changes up to {Lsn(end)}: name an archive that has that WAL"
            )

    def _refuse_already_read(self, begin: int) -> None:
        if (position := self._stream.position) > begin:
            raise HistoryError(
                f"{self._state}: the state has read up to {Lsn(position)}, and the query wants "
                f"changes after {Lsn(begin)}: name an empty state, and it reads all WAL again"
            )

    def _write_files(self, spooled: SpooledChanges, begin: int, end: int) -> Iterator[str]:
        for number, table in enumerate(row_groups(spooled.reader())):
            name = f"range-{self._name}-{begin:016X}-{end:016X}-{number:06}.arrows"
            try:
                with (
                    self._spool.whole(name) as file,
                    pa.ipc.new_stream(file, SCHEMA, options=PACKED) as writer,
                ):
                    writer.write_table(table)
            except OSError as error:
                raise HistoryError(
                    f"{name}: its changes do not fit into the spool: {error}: make room there, and "
                    "start the query again"
                ) from error
            yield name

    def finish(self, end: int) -> None:
        """Remove the files of ranges up to `end`; save the state there when that is due."""
        own = re.compile(_NAME.format(self._name))
        for name in self._spool.names():
            found = own.fullmatch(name)
            if found and int(found[1], 16) <= end:
                self._spool.remove(name)
        stream = self._stream
        if stream.position == end and end - self._saved >= self.save_bytes:
            stream.save()
            self._saved = end


def read_spooled(spool: str, name: str) -> Iterator[Any]:
    """Yield the record batches of a file; raise HistoryError if it is not there."""
    data = _objects(spool).get(name)
    if data is None:
        raise HistoryError(
            f"{spool}/{name}: not there: name a spool that all executors reach (option spool)"
        )
    yield from pa.ipc.open_stream(data)


def _objects(spool: str) -> Objects:
    return ChangeFiles.open(spool).objects
