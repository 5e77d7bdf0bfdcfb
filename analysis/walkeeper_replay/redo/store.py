"""Pages of chosen relations as they are at one place of the log; records of a batch bring them on.

    store = PageStore(wanted=[Relation(1663, 5, 16384)])
    store.add(batch)                 a batch of records, in the order of the log
    store.pages_of(relation)         (block numbers, slots) of the pages that are known

Contract: memory is 8 kB for each page touched. With `part` of `parts`, a store has only that share
of the blocks. So several stores, each walking the same WAL, have a relation together. The store
itself makes changes of whole files in between (truncation, drops, copies of databases, maps of
catalogs).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Protocol

import numpy as np

from walkeeper_history.segment_index import Facts
from walkeeper_replay.redo.apply import (
    ARENA,
    BLOCKS_PER_PART,
    BROKEN,
    CHOSEN_ROW,
    COUNTS,
    EVENT_ROW,
    EVENTS,
    GONE,
    KNOWN,
    RECORD_VERSIONS,
    RELATIONS,
    SLOT_ROW,
    SLOTS,
)
from walkeeper_replay.redo.files_of_records import Change, CopyDatabase, Drop, Mapped, changes_of
from walkeeper_replay.redo.images import unpack_images
from walkeeper_replay.redo.page import PAGE_BYTES
from walkeeper_replay.redo.page_resets import LastResets
from walkeeper_replay.redo.page_room import room
from walkeeper_replay.redo.redo_loops import loops
from walkeeper_wal.records.segment import Bytes, Column
from walkeeper_wal.sources.reading import Batch

PAGES_AT_FIRST, RELATIONS_AT_FIRST = 1 << 12, 1 << 16
EVENTS_MAX, ARENA_BYTES = 1 << 18, 1 << 25
NO_LSNS = np.empty(0, np.int64)
_ROOM = ("_event_rows", "_arena", "_chosen")


class Relation(NamedTuple):
    """A relation's file, as WAL names it."""

    tablespace: int
    database: int
    relfilenode: int


class Base(Protocol):
    """Pages from before the WAL."""

    def read(self, relation: Relation) -> Bytes | None: ...
    def damaged(self, pages: Bytes, blocks: Column) -> Column: ...


@dataclass(slots=True)
class Events:
    """Changes of tuples of recorded relations: rows of EVENT_ROW and the tuples' bytes."""

    rows: Column
    arena: Bytes


@dataclass(slots=True)
class Extent:
    """The known part of a relation's length."""

    begins_empty: bool = False
    """True if the WAL made its file or the base has it: it is known which blocks there are."""
    blocks: int = 0


@dataclass(slots=True)
class PageStore:
    """See the module."""

    wanted: Iterable[Relation] = ()
    takes_all: bool = False
    low_nodes: tuple[int, ...] = ()
    part: int = 0
    parts: int = 1
    base: Base | None = None
    record_level: int = 0
    """For relations that enter later: 0, RECORD_CHANGES or RECORD_VERSIONS."""
    levels: dict[Relation, int] = field(default_factory=dict)
    """The relations that are recorded otherwise than at `record_level`."""
    relations: list[Relation] = field(default_factory=list)
    extents: list[Extent] = field(default_factory=list)
    maps: dict[int, dict[int, int]] = field(default_factory=dict)
    """A mapped catalog's relfilenode, by database (0 is shared)."""
    map_log: list[tuple[int, int, dict[int, int]]] = field(default_factory=list)
    """(end of the record, database, its map from then on)."""
    major: int | None = None
    """The major version of the WAL, from the first batch on."""
    whole: frozenset[Relation] = frozenset()
    """Relations of which every part holds all blocks: they store values out of line."""
    events: list[Events] = field(default_factory=list)
    emptied: dict[Relation, list[int]] = field(default_factory=dict)
    """Where the WAL made a relation's file, or cut it off at its first block."""
    dropped: list[tuple[int, int, int]] = field(default_factory=list)
    """(relation's number, events before, LSN), where its database's directory was removed."""
    resets: LastResets | None = None
    """See page_resets: what is before them is not redone."""
    pages: Bytes = field(init=False)
    slots: Column = field(init=False)
    hash_keys: Column = field(init=False)
    hash_slots: Column = field(init=False)
    counts: Column = field(init=False)
    images: Bytes = field(init=False)
    scratch: Bytes = field(init=False)
    _keys: Column = field(init=False)
    _values: Column = field(init=False)
    _recorded: Column = field(init=False)
    _whole: Column = field(init=False)
    _event_rows: Column = field(init=False)
    _arena: Bytes = field(init=False)
    _chosen: Column = field(init=False)

    def __post_init__(self) -> None:
        self.counts = np.zeros(COUNTS, np.int64)
        self.pages = room(PAGES_AT_FIRST)
        self.slots = np.zeros(PAGES_AT_FIRST, SLOT_ROW)
        self.hash_keys = np.full(4 * PAGES_AT_FIRST, -1, np.int64)
        self.hash_slots = np.zeros(4 * PAGES_AT_FIRST, np.int32)
        self.images = np.empty((0, PAGE_BYTES), np.uint8)
        self.scratch = np.empty(PAGE_BYTES, np.uint8)
        self._keys = np.zeros((RELATIONS_AT_FIRST, 2), np.int64)
        self._values = np.full(RELATIONS_AT_FIRST, -1, np.int32)
        self._recorded = np.zeros(RELATIONS_AT_FIRST, np.uint8)
        self._whole = np.zeros(RELATIONS_AT_FIRST, np.uint8)
        records = self.record_level > 0
        self._event_rows = np.empty(EVENTS_MAX if records else 0, EVENT_ROW)
        self._arena = np.empty(ARENA_BYTES if records else 0, np.uint8)
        self._chosen = np.empty(0, CHOSEN_ROW)
        for relation in self.wanted:
            self.want(relation)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy or a file of this store needs: pages that exist, not the room."""
        self.take_events()
        kept = np.flatnonzero(self.slots["state"][: self.counts[SLOTS]] != GONE)
        counts = self.counts.copy()
        counts[SLOTS] = len(kept)
        left_out = ("images", "hash_keys", "hash_slots", "resets", *_ROOM)
        names = (each.name for each in fields(self) if each.name not in left_out)
        state = {name: getattr(self, name) for name in names}
        return {**state, "counts": counts, "pages": self.pages[kept], "slots": self.slots[kept]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.resets = None
        for name, value in state.items():
            setattr(self, name, value)
        used = len(self.slots)
        count = max(PAGES_AT_FIRST, 2 * used)
        pages, slots = self.pages, self.slots
        self.pages, self.slots = room(count), np.zeros(count, SLOT_ROW)
        self.pages[:used], self.slots[:used] = pages, slots
        self.hash_keys = np.full(4 * count, -1, np.int64)
        self.hash_slots = np.zeros(4 * count, np.int32)
        loops.rehash(self.hash_keys, self.hash_slots, self.slots, used)
        self.images = np.empty((0, PAGE_BYTES), np.uint8)
        records = self.record_level > 0
        self._event_rows = np.empty(EVENTS_MAX if records else 0, EVENT_ROW)
        self._arena = np.empty(ARENA_BYTES if records else 0, np.uint8)
        self._chosen = np.empty(0, CHOSEN_ROW)

    def want(self, relation: Relation) -> int:
        """Return a relation's number in this store; its pages of the base are read."""
        at = self._place_of(relation)
        if self._values[at] < 0:
            if self._is_half_used():
                self._double_relations()
                at = self._place_of(relation)
            self._put_at(at, relation, int(self.counts[RELATIONS]))
            self.counts[RELATIONS] += 1
            self._enter_relations()
        return int(self._values[at])

    def _place_of(self, relation: Relation) -> int:
        space = relation.tablespace << 32 | relation.database
        at = loops.find_relation(self._keys, self._values, space, relation.relfilenode)
        return int(at)

    def _put_at(self, at: int, relation: Relation, number: int) -> None:
        self._keys[at] = relation.tablespace << 32 | relation.database, relation.relfilenode
        self._values[at] = number

    def _is_half_used(self) -> bool:
        """Return True if the table of relations has no room for one more."""
        return bool(2 * (self.counts[RELATIONS] + 1) > len(self._values))

    def _double_relations(self) -> None:
        """Make room for as many relations again: half of the table's rows have to stay free."""
        count = 2 * len(self._values)
        self._keys, self._values = np.zeros((count, 2), np.int64), np.full(count, -1, np.int32)
        for number, relation in enumerate(self.relations):
            self._put_at(self._place_of(relation), relation, number)
        more = np.zeros(count // 2, np.uint8)
        self._recorded, self._whole = (
            np.append(column, more) for column in (self._recorded, self._whole)
        )

    def add(self, batch: Batch) -> None:
        """Redo one batch."""
        self.major = batch.version.layout
        starts, ends = NO_LSNS, NO_LSNS
        for chosen in self.stretches(batch):
            if len(chosen) and not len(ends):  # most segments change no catalog
                starts, ends = batch.start_lsn(), batch.end_lsn()
            at = 0
            while at < len(chosen):
                at = loops.apply(
                    batch.payload, batch.records, batch.blocks, starts, ends, chosen, at,
                    len(chosen), self.images, batch.version.image_apply_flag,
                    batch.version.layout, self._recorded, self.pages, self.slots, self.hash_keys,
                    self.hash_slots, self.counts, self._event_rows, self._arena, self.scratch,
                )  # fmt: skip
                if at < len(chosen):
                    self.grow()

    def stretches(self, batch: Batch) -> Iterator[Column]:
        """Yield wanted block references, cut at each change of whole files, which is made in
        between."""
        if len(self._chosen) < len(batch.blocks):
            self._chosen = np.empty(len(batch.blocks), CHOSEN_ROW)
        low = np.array(self.low_nodes, np.int64)
        changes, at = list(changes_of(batch)), 0
        while at < len(batch.blocks):
            count, at = loops.choose(
                batch.records, batch.blocks, at, self._keys, self._values, low, self.takes_all,
                self.part, self.parts, self._whole, self.counts, self._chosen,
            )  # fmt: skip
            self._enter_relations()
            if at < len(batch.blocks):  # perhaps before the first one of this store's part
                assert self._is_half_used(), f"{at=} {self.counts[RELATIONS]=}"
                self._double_relations()
            chosen = self._chosen[:count]
            if self.resets is not None:
                chosen = self.resets.needed(batch, chosen)
            chosen["image"], self.images = unpack_images(batch, chosen["row"], self.images)
            records = batch.blocks["record"][chosen["row"]]
            begin = 0
            last = int(batch.blocks["record"][at - 1]) if at else 0
            while changes and (changes[0].record <= last or at == len(batch.blocks)):
                end = int(np.searchsorted(records, changes[0].record, "right"))
                yield chosen[begin:end]
                change, known = changes.pop(0), len(self.relations)
                self._change(change, batch)
                begin = end
                if len(self.relations) > known:  # a copied database has files to choose from here
                    at = int(np.searchsorted(batch.blocks["record"], change.record, "right"))
                    chosen = chosen[:begin]
                    break
            yield chosen[begin:]
        for change in changes:
            self._change(change, batch)

    def wants(self, facts: Facts) -> bool:
        """Return whether a segment's records may change a page or a file of this store."""
        if facts.is_special or self.takes_all:
            return True
        files = facts.files
        if np.isin(files[:, 2], np.array(self.low_nodes, np.int64)).any():
            return True
        return any(relation in self.relations for relation in map(tuple, files.tolist()))

    def grow(self) -> None:
        """Make room for as many pages again, and for events."""
        self.take_events()
        used = int(self.counts[SLOTS])
        if 2 * (used + 1) > len(self.hash_keys) or used == len(self.slots):
            self.double()

    def double(self) -> None:
        """Make room for as many pages again."""
        used = int(self.counts[SLOTS])
        slots = np.zeros(2 * len(self.slots), SLOT_ROW)
        slots[:used] = self.slots[:used]
        if len(self.pages) < len(slots):
            pages = room(len(slots))
            pages[:used] = self.pages[:used]
            self.pages = pages
        self.hash_keys = np.full(4 * len(slots), -1, np.int64)
        self.hash_slots = np.zeros(4 * len(slots), np.int32)
        self.slots = slots
        loops.rehash(self.hash_keys, self.hash_slots, slots, used)

    def take_events(self) -> None:
        """Move the recorded rows and tuples to `events`."""
        count, used = int(self.counts[EVENTS]), int(self.counts[ARENA])
        if count:
            self.events.append(Events(self._event_rows[:count].copy(), self._arena[:used].copy()))
            self.counts[EVENTS] = self.counts[ARENA] = 0

    def slots_of(self, relation: int) -> Column:
        """Return the slots of a relation's pages that exist, in the order of their blocks."""
        slots = self.slots[: self.counts[SLOTS]]
        found = np.flatnonzero((slots["relation"] == relation) & (slots["state"] != GONE))
        ordered: Column = found[np.argsort(slots["block"][found], kind="stable")]
        return ordered

    def _enter_relations(self) -> None:
        """Enter the relations that `choose` or `want` has put into the table, with their base."""
        first, total = len(self.relations), int(self.counts[RELATIONS])
        if first == total:
            return
        places = np.flatnonzero(self._values >= first)
        for place in places[np.argsort(self._values[places])].tolist():
            space, node = self._keys[place].tolist()
            number = len(self.relations)
            self.relations.append(Relation(space >> 32, space & 0xFFFFFFFF, node))
            self.extents.append(Extent())
            relation = self.relations[number]
            self._recorded[number] = self.levels.get(relation, self.record_level)
            self._whole[number] = relation in self.whole
            if self.base is not None:
                self._load(number)

    def _load(self, number: int) -> None:
        assert self.base is not None, f"{number=}"
        found = self.base.read(self.relations[number])
        if found is not None:
            self.extents[number] = Extent(begins_empty=True, blocks=len(found))
            blocks = np.arange(len(found))
            self.load(number, found, blocks, self.base.damaged(found, blocks))

    def load(
        self, number: int, pages: Bytes, blocks: Column, damaged: Column | None = None
    ) -> None:
        """Make pages known, but for those that are damaged; leave out other parts' blocks."""
        node = self.relations[number].relfilenode
        own = (blocks // BLOCKS_PER_PART + node) % self.parts == self.part
        own |= self._whole[number] != 0
        for row in np.flatnonzero(own).tolist():
            block = int(blocks[row])
            slot = self._slot(number, block)
            self.pages[slot] = pages[row]
            if damaged is not None and damaged[row]:
                self.slots["state"][slot] = BROKEN
                continue
            self.slots["state"][slot] = KNOWN
            if self._recorded[number] == RECORD_VERSIONS:
                if self.counts[EVENTS] + 600 > len(self._event_rows) or (
                    self.counts[ARENA] + 2 * PAGE_BYTES > len(self._arena)
                ):
                    self.take_events()
                loops.note_all(
                    self.pages[slot], block, number, 0, 0, self.counts, self._event_rows,
                    self._arena,
                )  # fmt: skip

    def _slot(self, number: int, block: int) -> int:
        arguments = (self.counts, number, block)
        slot = loops.slot_of(self.hash_keys, self.hash_slots, self.slots, *arguments)
        if slot < 0:
            self.grow()
            slot = loops.slot_of(self.hash_keys, self.hash_slots, self.slots, *arguments)
        return int(slot)

    def _change(self, change: Change, batch: Batch) -> None:
        match change:
            case Drop(_, relation, from_block, is_new):
                self._drop(Relation(*relation), from_block, is_new)
                if Relation(*relation).relfilenode == 0:
                    self._note_dropped(Relation(*relation), int(batch.start_lsn()[change.record]))
                if from_block == 0 and Relation(*relation) in self.relations:
                    start = int(batch.start_lsn()[change.record])
                    self.emptied.setdefault(Relation(*relation), []).append(start)
            case CopyDatabase(_, database, tablespace, source, source_tablespace):
                self._copy((source_tablespace, source), (tablespace, database))
                end = int(batch.end_lsn()[change.record])
                self.map_log.append((end, database, self.maps[database]))
            case Mapped(_, database, nodes):
                self.maps[database] = {**self.maps.get(database, {}), **nodes}
                end = int(batch.end_lsn()[change.record])
                self.map_log.append((end, database, self.maps[database]))

    def _drop(self, gone: Relation, from_block: int, is_new: bool) -> None:
        """Mark a relation's blocks as gone, all relations of a database if its relfilenode is 0."""
        for number, relation in enumerate(self.relations):
            whole = gone.relfilenode == 0 and gone[:2] == relation[:2]
            if whole or gone == relation:
                slots = self.slots[: self.counts[SLOTS]]
                cut = (slots["relation"] == number) & (slots["block"] >= from_block)
                slots["state"][cut] = GONE
                extent = self.extents[number]
                extent.begins_empty |= is_new
                extent.blocks = min(extent.blocks, from_block)

    def _note_dropped(self, gone: Relation, lsn: int) -> None:
        self.take_events()
        before = sum(len(piece.rows) for piece in self.events)
        for number, relation in enumerate(self.relations):
            if relation[:2] == gone[:2]:
                self.dropped.append((number, before, lsn))

    def _copy(self, source: tuple[int, int], target: tuple[int, int]) -> None:
        """Copy the pages as they are now (CREATE DATABASE with STRATEGY FILE_COPY)."""
        self.maps[target[1]] = dict(self.maps.get(source[1], {}))
        for number, relation in list(enumerate(self.relations)):
            if relation[:2] != source:
                continue
            copy = Relation(*target, relation.relfilenode)
            # A database that moves to another tablespace takes all of its files along.
            is_moved = source[1] == target[1]
            if not (self.takes_all or copy in self.relations or self.low_nodes or is_moved):
                continue
            made = self.want(copy)
            self.extents[made] = Extent(self.extents[number].begins_empty)
            self._copy_pages(number, made)

    def _copy_pages(self, number: int, made: int) -> None:
        slots = self.slots_of(number)
        blocks, states = (self.slots[name][slots] for name in ("block", "state"))
        known = states == KNOWN
        self.load(made, self.pages[slots[known]], blocks[known].astype(np.int64))
        # A damaged page lacks the same rows in the copy.
        for block, state in zip(blocks[~known].tolist(), states[~known].tolist(), strict=True):
            self.slots["state"][self._slot(made, block)] = state
