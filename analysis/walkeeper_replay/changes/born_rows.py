"""The writers of rows to which columns were added: an undo deletes the versions of these alone.

    writers = Writers(changes)
    writers.of(change)       the transactions whose version of the row the undo may take, or ()

Contract: a change of a column that was added later leaves the other values of the row alone, but it
gives the row another xmin. So the undo of an INSERT asks for the xmin, and deletes no such row. An
undo of an UPDATE keeps what later columns have. But if the same SQL takes back the INSERT of the
row, too, the UPDATE's undo would hide the xmin, and asks for it first. Without a key, any row of
the table may be the inserted one. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from walkeeper_replay.changes.change_rows import Change
from walkeeper_replay.changes.found_rows import Row, lasting_keys, stored

Key = tuple[object, ...]


class Writers:
    """See the module."""

    def __init__(self, changes: Sequence[Change]) -> None:
        self._of: dict[int, list[int]] = {}
        """By id(change); the caller keeps the changes."""
        self._last: dict[Key, list[int]] = {}
        """By a row that one of the changes inserted: the writers that its last change may have."""
        self._idle: dict[int, list[int]] = {}
        """By OID of a table without a key: transactions that gave some row the values it had."""
        self._keys = lasting_keys(changes)
        if any(change.table.later_columns for change in changes):
            for change in changes:
                if change.coverage.has_values:
                    self._follow(change, change.xid or 0)  # No row is of transaction 0.

    def of(self, change: Change) -> Sequence[int]:
        """Return the transactions of which one wrote the row last; () if any may have."""
        found = self._of.get(id(change), [])
        return found and [*found, *self._idle.get(change.table.oid, ())]

    def _follow(self, change: Change, xid: int) -> None:
        old, new = change.old, change.new
        if change.operation == "insert" and new is not None:
            self._note(change, self._key(change, new), xid)
        elif change.operation == "update" and old is not None and new is not None:
            key = self._key(change, old)
            if key not in self._last:
                return
            if all(old[name] == new[name] for name in stored(change.table)):
                # Its undo has nothing to do.
                idle = self._last[key] if self._keys[change.table.oid] else self._of_table(change)
                if xid not in idle[-1:]:
                    idle.append(xid)
            else:
                self._note(change, self._key(change, new), xid)

    def _of_table(self, change: Change) -> list[int]:
        return self._idle.setdefault(change.table.oid, [])

    def _note(self, change: Change, key: Key, xid: int) -> None:
        writers = self._last[key] = [xid]
        if change.table.later_columns:
            self._of[id(change)] = writers

    def _key(self, change: Change, row: Row) -> Key:
        oid = change.table.oid
        return (oid, *(row[name] for name in self._keys[oid]))
