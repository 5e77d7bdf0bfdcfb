"""The changes of a window for a mirror: as parts, in sets that are each one commit of the lake.

    with SpooledParts(folder, after=lsn, bytes_max=n) as spooled:
        spooled.take(found)                  again and again, in the order of commits
        for each in spooled.sets(end): …     each.parts(), and the LSN at which it ends

A set has whole commits, together of at most `bytes_max`, or one commit that comes in several parts.
Contract: memory has parts of `bytes_max` bytes at most between two calls. The others are in a file
without a name, so that a death leaves nothing. A full disk raises HistoryError, before a sink has
got anything.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from walkeeper_replay.catalogs.catalog import Table
from walkeeper_replay.changes.change_rows import FoundChanges
from walkeeper_replay.streams.unnamed_file import UnnamedFile


@dataclass(slots=True)
class _Entry:
    """A part, or where it begins in the file."""

    first_lsn: int
    last_lsn: int
    """The first and the last commit of it."""
    size: int
    found: FoundChanges | None
    place: int = 0


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """Changes for one commit of each table."""

    spooled: SpooledParts
    entries: tuple[_Entry, ...]
    end: int
    """All commits up to here are in it or in an earlier one."""

    @property
    def size(self) -> int:
        """The bytes of its parts in memory."""
        return sum(each.size for each in self.entries)

    @property
    def is_large(self) -> bool:
        """True if it is one commit that is larger than the bound."""
        return len(self.entries) > 1 and self.size > self.spooled.bytes_max

    def parts(self) -> Iterator[FoundChanges]:
        """Yield the parts, one at a time in memory if they are in the file."""
        return map(self.spooled.loaded, self.entries)


class SpooledParts(UnnamedFile):
    """The parts of one window, in the order of commits."""

    def __init__(self, folder: Path, after: int, bytes_max: int) -> None:
        """Begin without changes. Those of commits that end at `after` or before are left out."""
        super().__init__(folder, "the changes of a window")
        self.bytes_max = bytes_max
        self.rewritten: Mapping[int, Table] = {}
        """By OID: the tables that the window rewrote. They are known at its end."""
        self._after = after
        self._entries: list[_Entry] = []
        self.bytes_in_memory = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def take(self, found: FoundChanges) -> None:
        """Take one part."""
        found = found.after(self._after)
        if not len(found):
            return
        self._count += len(found)
        first, last = found.commits()
        made = _Entry(first, last, found.typed_bytes(), found)
        self._entries.append(made)
        self.bytes_in_memory += made.size
        if self.bytes_in_memory > self.bytes_max:
            self._write_all()

    def _write_all(self) -> None:
        with self.end() as file:
            for entry in self._entries:
                if entry.found is not None:
                    begin = file.tell()
                    pickle.dump(entry.found.without_texts(), file, pickle.HIGHEST_PROTOCOL)
                    entry.place = begin
                    entry.found = None
        self.bytes_in_memory = 0

    def loaded(self, entry: _Entry) -> FoundChanges:
        """Return a part."""
        if entry.found is not None:
            return entry.found
        found: FoundChanges = pickle.load(self.at(entry.place))
        return found

    def sets(self, end: int) -> Iterator[ChangeSet]:
        """Yield the sets in the order of their commits; the last one ends at `end`."""
        groups: list[list[_Entry]] = []
        for unit in self._units():
            last = groups[-1] if groups else None
            if last is not None and sum(e.size for e in [*last, *unit]) <= self.bytes_max:
                last += unit
            else:
                groups.append(unit)
        for number, group in enumerate(groups, 1):
            yield ChangeSet(
                self, tuple(group), end if number == len(groups) else group[-1].last_lsn
            )

    def _units(self) -> Iterator[list[_Entry]]:
        """Yield the parts of each commit that has several, and each other part alone."""
        unit: list[_Entry] = []
        for entry in self._entries:
            if unit and entry.first_lsn != unit[-1].last_lsn:
                yield unit
                unit = []
            unit.append(entry)
            first, last = unit[0].first_lsn, unit[-1].last_lsn
            assert len(unit) == 1 or first == last, f"one commit: {first=} {last=}"
        if unit:
            yield unit
