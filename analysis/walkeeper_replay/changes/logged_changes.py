"""Row changes of a logical log: the same columns as `changes` of WAL, without redo and catalogs.

    log = LoggedChanges(EntryFiles.open(url), tables=["public.t"])
    for change in log.read(begin, end): …        of entries that start at positions in [begin, end)

Messages of pgoutput are decoded by PostgreSQL's manual ("Logical Replication Message Formats").
LSNs, times, transactions, names and values are those in `changes` of the same server's WAL. A part
that is not sent is absent, and `coverage` says so. An old row lacks every column that is not in the
table's replica identity. A new row may lack values stored out of line that an update left alone.
The subtransaction of a change is not sent.

Contract: whole transactions in the order of commits. A transaction that was cut off and sent again
appears once. Memory: one segment, and one message. A transaction longer than a frame is walked over
twice, because its end LSN is at its end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError

from walkeeper_common.entries import EntryKind, EntryWalk, Frame
from walkeeper_common.errors import RemoteProtocolError
from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.pgoutput import (
    BEGIN,
    CHANGES,
    RELATION,
    TRUNCATE,
    Begin,
    MessageSplitter,
    described,
    relation_name,
    relations_of,
)
from walkeeper_common.postgres.walformat import InvalidWal
from walkeeper_replay.catalogs.catalog import Table
from walkeeper_replay.catalogs.table_names import meant
from walkeeper_replay.changes.change_rows import Change
from walkeeper_replay.redo.store import Relation
from walkeeper_replay.text.coverage import Coverage, reason, together
from walkeeper_replay.tuples.commits import Commit
from walkeeper_wal.sources.entry_files import EntryFiles
from walkeeper_wal.wal_errors import DamagedWal

Row = dict[str, str | None]

IDENTITY_ONLY = reason("of the old row only its replica identity is sent")
UNCHANGED_VALUE = reason("values stored out of line that did not change are not sent")
_OPERATIONS = {ord("I"): "insert", ord("U"): "update", ord("D"): "delete"}
_TEXT, _NULL, _UNCHANGED = ord("t"), ord("n"), ord("u")
_NO_FILE = Relation(0, 0, 0)
_COLUMNS, _COLUMN, _COUNT, _SIZE = Struct("!cH"), Struct("!B"), Struct("!H"), Struct("!I")
_LSN = Struct("!Q")
_LSN_AT = 6  # where the change's LSN begins in the CopyData message: "d", its length, "w", the LSN
_AFTER_OID = 5


@dataclass(frozen=True, slots=True)
class Described:
    """A Relation message: the table's columns, and the columns that identify a row."""

    table: Table
    columns: tuple[str, ...]
    is_key: tuple[bool, ...]

    @classmethod
    def unpack(cls, message: memoryview) -> Described:
        oid, (schema, name) = described(message), relation_name(message)
        at = bytes(message).index(b"\0", table_name_begin(message)) + 1
        _, count = _COLUMNS.unpack_from(message, at)
        at += _COLUMNS.size
        columns, keys = [], []
        for _ in range(count):
            end = bytes(message).index(b"\0", at + 1)
            keys.append(bool(message[at] & 1))
            columns.append(bytes(message[at + 1 : end]).decode())
            at = end + 1 + 8  # its type and the type's modifier
        key = tuple(c for c, is_key in zip(columns, keys, strict=True) if is_key)
        table = Table(oid, schema, name, _NO_FILE, (), None, key)
        return cls(table, tuple(columns), tuple(keys))


def table_name_begin(message: memoryview) -> int:
    """Return where a Relation message's table name begins."""
    return bytes(message).index(b"\0", _AFTER_OID) + 1


@dataclass(slots=True)
class _Tuple:
    """A row as it is sent; `unchanged` are columns whose value is not."""

    values: Row
    unchanged: set[str]
    end: int


def _tuple(message: memoryview, at: int, columns: Sequence[str]) -> _Tuple:
    (count,) = _COUNT.unpack_from(message, at)
    if count != len(columns):
        raise RemoteProtocolError(f"a row of {count} columns, not {len(columns)}")
    at += _COUNT.size
    found = _Tuple({}, set(), at)
    for name in columns:
        kind = message[at]
        at += 1
        if kind == _TEXT:
            (size,) = _SIZE.unpack_from(message, at)
            at += _SIZE.size
            found.values[name] = str(message[at : at + size], "utf-8", "replace")
            at += size
        elif kind == _NULL:
            found.values[name] = None
        elif kind == _UNCHANGED:
            found.unchanged.add(name)
        else:
            raise RemoteProtocolError(f"a value of kind {chr(kind)!r}")
    found.end = at
    return found


class LoggedChanges:
    """The changes of one log. `tables` has `schema.table`, `table` or OIDs; empty, it means all."""

    def __init__(self, files: EntryFiles, tables: Sequence[str] = ()) -> None:
        self.files, self._tables = files, frozenset(tables)
        self.database = ""  # as in the last settings that were read
        self._relations: dict[int, Described] = {}
        self._end_lsn = 0  # the end of the transaction that is being read

    def has_column(self, table: Table, column: str) -> bool:
        """Return whether a table of the change that `read` gave last has the column."""
        return column in self._relations[table.oid].columns

    def read(self, begin: int, end: int) -> Iterator[Change]:
        """Yield the changes of entries in [begin, end).

        Each segment describes its tables, so reading begins at a segment's start.
        """
        files, size = self.files, self.files.segment_bytes
        if begin >= end:
            return
        start = max(Lsn(begin // size * size), files.first)
        walk = EntryWalk(files, start, files.end, size)
        self._relations = {}
        try:
            yield from self._entries(walk, begin, end)
        except (InvalidWal, RemoteProtocolError, StructError, ValueError, KeyError) as error:
            text = f"{files.shown(walk.position)}: at position {walk.position}: {error}"
            raise DamagedWal(text) from error

    def _entries(self, walk: EntryWalk, begin: int, end: int) -> Iterator[Change]:
        is_wanted, splitter, settings = False, MessageSplitter(), b""
        commit: Commit | None = None
        is_inside = False
        for frame in walk:
            if frame.is_first:
                if frame.position >= end:
                    return
                is_inside, splitter, commit, settings = True, MessageSplitter(), None, b""
                is_wanted = frame.position >= begin and self._is_whole(frame)
            if not is_inside:
                continue  # the rest of an entry that began in an earlier segment
            if frame.kind is EntryKind.SETTINGS:
                settings += bytes(frame.payload)
                if frame.is_last:
                    self.database = json.loads(settings).get("database", "")
            elif frame.kind is EntryKind.TRANSACTION:
                for copy_data, message in splitter.feed(frame.payload):
                    kind = message[0]
                    if kind == RELATION:
                        found = Described.unpack(message)
                        self._relations[found.table.oid] = found
                    elif not is_wanted:
                        continue
                    elif kind == BEGIN:
                        begun = Begin.unpack(message)
                        commit = Commit(self._end_lsn, begun.committed_at_us, begun.xid)
                    elif kind in CHANGES or kind == TRUNCATE:
                        assert commit is not None, f"a change without a Begin in {frame.position}"
                        yield from self._changes(copy_data, message, commit)

    def _is_whole(self, first: Frame) -> bool:
        """Return True if the entry was not abandoned; look ahead if it is longer than a frame."""
        if not first.is_last:
            self._end_lsn, kind = self._ending(first)
            return kind is EntryKind.TRANSACTION
        self._end_lsn = int(first.end_lsn)
        return first.kind is EntryKind.TRANSACTION

    def _ending(self, first: Frame) -> tuple[int, EntryKind]:
        files = self.files
        for frame in EntryWalk(files, first.position, files.end, files.segment_bytes):
            if frame.is_last:
                return int(frame.end_lsn), frame.kind
        raise DamagedWal(f"{files.shown(first.position)}: no end of the entry {first.position}")

    def _changes(self, copy_data: bytes, message: memoryview, commit: Commit) -> Iterator[Change]:
        (start,) = _LSN.unpack_from(copy_data, _LSN_AT)
        for oid in relations_of(message):
            known = self._relations[oid]
            if not self._is_asked_for(known.table):
                continue
            if message[0] == TRUNCATE:
                yield Change(start, commit, None, known.table, "truncate")
            else:
                yield _change(message, start, commit, known)

    def _is_asked_for(self, table: Table) -> bool:
        names = self._tables
        known = [(table.schema, table.name, table.oid)]
        return not names or any(meant(name, known) for name in names)


def _change(message: memoryview, start: int, commit: Commit, known: Described) -> Change:
    """Return one change.

    The old row is K (its identity) or O (whole), and is not sent if the identity stays.
    """
    change = Change(start, commit, None, known.table, _OPERATIONS[message[0]])
    doubts: set[Coverage] = set()
    part, at = bytes(message[_AFTER_OID : _AFTER_OID + 1]), _AFTER_OID + 1
    if part in (b"K", b"O"):
        sent = _tuple(message, at, known.columns)
        change.old, at = sent.values, sent.end
        if part == b"K":
            change.old = {name: change.old[name] for name in known.table.key}
        if part == b"K" and len(known.table.key) < len(known.columns):
            doubts.add(IDENTITY_ONLY)
        part, at = bytes(message[at : at + 1]), at + 1
    if part == b"N":
        sent = _tuple(message, at, known.columns)
        change.new = sent.values
        if change.operation == "update" and change.old is None:
            change.old = {n: sent.values[n] for n in known.table.key if n in sent.values}
            if len(change.old) < len(known.columns):
                doubts.add(IDENTITY_ONLY)
        _complete(change, sent.unchanged, known.columns, doubts)
    change.coverage = together(sorted(doubts))
    return change


def _complete(
    change: Change, unchanged: set[str], columns: Sequence[str], doubts: set[Coverage]
) -> None:
    """Take unchanged values from the old row, if that was sent whole."""
    if not unchanged:
        return
    assert change.new is not None, f"{change=}"
    before, new = change.old or {}, change.new
    change.new = {
        name: new[name] if name in new else before[name]
        for name in columns
        if name in new or name in before
    }
    if len(change.new) < len(columns):
        doubts.add(UNCHANGED_VALUE)


def selected(
    changes: Iterator[Change], start_lsn: int | None, end_lsn: int | None
) -> Iterator[Change]:
    """Yield the changes whose records start in [start_lsn, end_lsn)."""
    for change in changes:
        if (start_lsn or 0) <= change.start_lsn and (end_lsn is None or change.start_lsn < end_lsn):
            yield change


def stretches(files: EntryFiles, begin: int, end: int, parts: int) -> list[tuple[int, int]]:
    """Return [begin, end) in at most `parts` pieces of whole segments.

    An entry belongs to the piece in which it starts.
    """
    size = files.segment_bytes
    count = max(-(-end // size) - begin // size, 0)
    each = max(1, -(-count // parts)) * size
    bounds: list[int] = [begin]
    while (following := (bounds[-1] // size * size) + each) < end:
        bounds.append(following)
    return [*zip(bounds, [*bounds[1:], end], strict=True)] if begin < end else []
