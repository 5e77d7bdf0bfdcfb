"""A page store of bounded memory: the pages that were used last, and all others in a file.

    store = BoundedPages(wanted=…, base=base, file=file, origin=base, pages_max=…, …)
    store.attach(file, pages_max, base)      after it was loaded
    store.end_window(); store.write()        what is gone is forgotten; the file has every page

A stretch of records brings the pages that it changes into memory, from the file or the base backup.
If they would be more than `pages_max`, the pages that were not used for longest go to the file. The
backup's pages are read as they are needed. Contract: the pages are those of a PageStore without a
bound. A dropped file's pages stay readable until `end_window`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from walkeeper_replay.redo.apply import BROKEN, GONE, KNOWN, SLOT_ROW, SLOTS, UNKNOWN
from walkeeper_replay.redo.page import PAGE_BYTES
from walkeeper_replay.redo.page_file import BLOCKS, PageFile, PageRow
from walkeeper_replay.redo.redo_loops import loops
from walkeeper_replay.redo.store import Extent, PageStore, Relation
from walkeeper_wal.records.segment import Bytes, Column
from walkeeper_wal.sources.reading import Batch

PAGES_MIN = 64
MOVED_AT_ONCE = 1024
_LEFT_OUT = ("file", "origin", "pages_max", "used_at", "dirty", "pages", "slots", "_cut")


class Origin(Protocol):
    """Some pages of a base backup."""

    def block_count(self, relation: Relation) -> int | None: ...
    def read_block(self, relation: Relation, block: int) -> Bytes: ...
    def damaged(self, pages: Bytes, blocks: Column) -> Column: ...


@dataclass(slots=True)
class BoundedPages(PageStore):
    """See the module."""

    file: PageFile | None = None
    origin: Origin | None = None
    pages_max: int = PAGES_MIN
    used_at: Column = field(default_factory=lambda: np.zeros(0, np.int64))
    """For each slot, the stretch that used it last."""
    dirty: Column = field(default_factory=lambda: np.zeros(0, bool))
    """The slots whose pages the file does not have."""
    clock: int = 0
    _cut: dict[int, int] = field(default_factory=dict)
    """The blocks that a relation had in the base backup, before this window cut it off."""

    def attach(self, file: PageFile, pages_max: int, origin: Origin | None) -> None:
        """Set where the other pages are, and how many may be in memory."""
        self.file, self.origin, self.pages_max = file, origin, pages_max

    def __getstate__(self) -> dict[str, Any]:
        """Return all but the pages, which the file has."""
        state = PageStore.__getstate__(self)
        counts = state["counts"].copy()
        counts[SLOTS] = 0
        return {**{n: v for n, v in state.items() if n not in _LEFT_OUT}, "counts": counts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        none = {"pages": np.empty((0, PAGE_BYTES), np.uint8), "slots": np.empty(0, SLOT_ROW)}
        PageStore.__setstate__(self, {**state, **none})
        self.file, self.origin, self.pages_max, self._cut = None, None, PAGES_MIN, {}
        self.used_at, self.dirty = np.zeros(0, np.int64), np.zeros(0, bool)

    def stretches(self, batch: Batch) -> Iterator[Column]:
        """Yield wanted block references, whose pages are then in memory."""
        step = self.pages_max // 2
        for chosen in PageStore.stretches(self, batch):
            for begin in range(0, len(chosen), step):
                some = chosen[begin : begin + step]
                blocks = batch.blocks["block_number"][some["row"]].astype(np.int64)
                self._bring(some["relation"].astype(np.int64), blocks)
                yield some

    def end_window(self) -> None:
        """Forget the pages of dropped files, and the parts that were cut off."""
        assert self.file is not None, "attached"
        for number in self._cut:
            self.file.forget_gone(number)
        self._cut.clear()
        self.dirty[: self.counts[SLOTS]][self._used()["state"] == GONE] = False

    def write(self) -> None:
        """Put the pages that have changed into the file, which `save` makes durable."""
        used = int(self.counts[SLOTS])
        self._write(np.flatnonzero(self.dirty[:used]))

    def page_at(self, number: int, block: int) -> Bytes | None:
        """Return a page that was there in this window, or None."""
        assert self.file is not None, "attached"
        slot = self._slots_at(np.array([number]), np.array([block]))
        if slot[0] >= 0:
            was_there = self.slots["state"][slot[0]] in (KNOWN, GONE)
            return self.pages[int(slot[0])] if was_there else None
        for row in self.file.get([number * BLOCKS + block]):
            return np.frombuffer(row.image, np.uint8) if row.state in (KNOWN, GONE) else None
        if self.origin is not None and block < self._blocks_of_base(number):
            page, state = self._original(number, block)
            return page if state == KNOWN else None
        return None

    def pieces_of(self, number: int, size: int = MOVED_AT_ONCE) -> Iterator[tuple[Bytes, Column]]:
        """Yield all pages of a relation that were there in this window, with their blocks, some at
        a time."""
        assert self.file is not None, "attached"
        pages: Bytes = np.empty((size, PAGE_BYTES), np.uint8)
        blocks: Column = np.empty(size, np.int64)
        count = 0
        for block in self._blocks_of(number):
            page = self.page_at(number, block)
            if page is None:
                continue
            pages[count], blocks[count] = page, block
            count += 1
            if count == size:
                yield pages, blocks
                count = 0
        yield pages[:count], blocks[:count]

    def _blocks_of(self, number: int) -> Iterator[int]:
        assert self.file is not None, "attached"
        used = self._used()
        found = set(used["block"][used["relation"] == number].tolist())
        found.update(row.key % BLOCKS for row in self.file.pages_of(number))
        found.update(range(self._blocks_of_base(number)))
        return iter(sorted(found))

    def _blocks_of_base(self, number: int) -> int:
        return max(self.extents[number].blocks, self._cut.get(number, 0))

    def _used(self) -> Column:
        used: Column = self.slots[: self.counts[SLOTS]]
        return used

    def _bring(self, relations: Column, blocks: Column) -> None:
        """Bring pages into memory; make slots of those that are nowhere."""
        found = self._slots_at(relations, blocks)
        self._fit()
        self.clock += 1
        here = found[found >= 0]
        self.used_at[here], self.dirty[here] = self.clock, True
        missing = np.unique((relations << 32 | blocks)[found < 0])
        if not len(missing):
            return
        if self.counts[SLOTS] + len(missing) > self.pages_max:
            self._evict(len(missing))
        while (
            2 * (self.counts[SLOTS] + len(missing) + 1) > len(self.hash_keys)
            or self.counts[SLOTS] + len(missing) > len(self.slots)
        ):  # fmt: skip
            self.double()
        made = np.empty(len(missing), np.int64)
        loops.make_slots(self.hash_keys, self.hash_slots, self.slots, self.counts, missing, made)
        self._fit()
        self.used_at[made], self.dirty[made] = self.clock, True
        self._read(missing, made)

    def _read(self, keys: Column, slots: Column) -> None:
        """Fill new slots with the pages of the file, or of the base backup."""
        assert self.file is not None, "attached"
        slot_of_key = dict(zip(keys.tolist(), slots.tolist(), strict=True))
        for row in self.file.get(list(slot_of_key)):
            slot = slot_of_key.pop(row.key)
            self.pages[slot] = np.frombuffer(row.image, np.uint8)
            self.slots["state"][slot] = row.state
        if self.origin is None:
            return
        for key, slot in slot_of_key.items():
            number, block = divmod(key, BLOCKS)
            if block < self.extents[number].blocks:
                self.pages[slot], self.slots["state"][slot] = self._original(number, block)

    def _original(self, number: int, block: int) -> tuple[Bytes, int]:
        """Return a page of the base backup, and its state: BROKEN if it is damaged."""
        assert self.origin is not None, f"{number=}"
        page = self.origin.read_block(self.relations[number], block)
        is_damaged = self.origin.damaged(page.reshape(1, -1), np.array([block]))[0]
        return page, BROKEN if is_damaged else KNOWN

    def _fit(self) -> None:
        """Give each slot its place in the columns beside the slots."""
        if len(self.used_at) < len(self.slots):
            more = len(self.slots) - len(self.used_at)
            self.used_at = np.append(self.used_at, np.zeros(more, np.int64))
            self.dirty = np.append(self.dirty, np.zeros(more, bool))

    def _evict(self, coming: int) -> None:
        """Keep the pages that were used last, half of the bound at most; write the others."""
        used = int(self.counts[SLOTS])
        room = max(min(self.pages_max // 2, self.pages_max - coming), 0)
        newest = np.argsort(self.used_at[:used], kind="stable")[max(used - room, 0) :]
        kept: Column = np.zeros(used, bool)
        kept[newest] = True
        kept |= self.used_at[:used] == self.clock
        self._write(np.flatnonzero(self.dirty[:used] & ~kept))
        places = np.flatnonzero(kept)
        for begin in range(0, len(places), MOVED_AT_ONCE):
            # Each page moves down, so that no page is overwritten before it has moved.
            some = places[begin : begin + MOVED_AT_ONCE]
            self.pages[begin : begin + len(some)] = self.pages[some]
        for column in (self.slots, self.used_at, self.dirty):
            column[: len(places)] = column[places]
        self.slots[len(places) : used] = 0
        self.dirty[len(places) : used] = False
        self.counts[SLOTS] = len(places)
        self.hash_keys[:] = -1
        loops.rehash(self.hash_keys, self.hash_slots, self.slots, len(places))

    def _write(self, slots: Column) -> None:
        assert self.file is not None, "attached"
        states = self.slots["state"]
        slots = slots[states[slots] != UNKNOWN]
        chosen = self.slots[slots]
        keys = chosen["relation"].astype(np.int64) * BLOCKS + chosen["block"]
        order = np.argsort(keys)
        self.file.put(
            PageRow(key, state, self.pages[slot].tobytes())
            for key, state, slot in zip(
                keys[order].tolist(), chosen["state"][order].tolist(), slots[order].tolist(),
                strict=True,
            )
        )  # fmt: skip
        self.dirty[slots] = False

    def _load(self, number: int) -> None:
        """Note how many blocks of a relation the base backup has; they are read when needed."""
        assert self.base is not None and self.origin is not None, f"{number=}"
        count = self.origin.block_count(self.relations[number])
        if count is not None:
            self.extents[number] = Extent(begins_empty=True, blocks=count)

    def _drop(self, gone: Relation, from_block: int, is_new: bool) -> None:
        """Mark blocks as gone, also those in the file."""
        assert self.file is not None, "attached"
        for number, relation in enumerate(self.relations):
            whole = gone.relfilenode == 0 and gone[:2] == relation[:2]
            if not (whole or gone == relation):
                continue
            self._cut.setdefault(number, self.extents[number].blocks)
            self.file.mark_gone(number, from_block)
            used = self._used()
            cut = (used["relation"] == number) & (used["block"] >= from_block)
            self._fit()
            self.dirty[: len(used)][cut] = True
            # A page that is gone is still read in this window, and what is not known never.
            unknown = cut & ~np.isin(used["state"], (KNOWN, GONE))
            self.pages[: len(used)][unknown] = 0
        PageStore._drop(self, gone, from_block, is_new)

    def _copy_pages(self, number: int, made: int) -> None:
        """Copy the pages of a relation that moves with its database, some at a time."""
        blocks, step = np.array(list(self._blocks_of(number)), np.int64), self.pages_max // 4
        for begin in range(0, len(blocks), step):
            some = blocks[begin : begin + step]
            source, target = np.full(len(some), number), np.full(len(some), made)
            self._bring(source, some)
            states = self.slots["state"][self._slots_at(source, some)]
            is_there = np.isin(states, (KNOWN, BROKEN))
            some, source, target = some[is_there], source[is_there], target[is_there]
            self._bring(np.append(source, target), np.append(some, some))
            before, after = self._slots_at(source, some), self._slots_at(target, some)
            self.pages[after] = self.pages[before]
            self.slots["state"][after] = self.slots["state"][before]

    def _slots_at(self, relations: Column, blocks: Column) -> Column:
        """Return the slots of pages, or -1 for those that are not in memory."""
        found: Column = np.empty(len(blocks), np.int64)
        loops.slots_at(self.hash_keys, self.hash_slots, relations, blocks, found)
        return found
