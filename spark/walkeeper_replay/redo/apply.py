"""One batch of records on the pages of chosen relations: chosen, redone, recorded. Compiled.

    choose(...)    the block references of wanted relations (and of one part of their blocks)
    apply(...)     redo of those, in the order of the log; with `recorded` relations also the tuples
                   that records put in, changed or took away, copied into an arena

Contract: a page is known from its first image, its initialisation or a base backup on. Until then
records do not change it and are counted. A record that does not fit its page makes it broken until
its next image. That is counted too, and the page's content is not used. A record below its page's
LSN is skipped, as in PostgreSQL's redo. Both loops return the place where they ran out of room, to
be called again.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from walkeeper_history.records.walk import HAS_IMAGE
from walkeeper_replay.redo import heap2_redo, heap_redo
from walkeeper_replay.redo.compiled import compiled
from walkeeper_replay.redo.heap2_redo import redo_heap2
from walkeeper_replay.redo.heap_redo import NEW_PAGE, OLD_PAGE, SAME_PAGE, redo_heap
from walkeeper_replay.redo.page import (
    PAGE_BYTES,
    UPPER,
    get16,
    get_lsn,
    initialise,
    is_sane,
    item_count,
    set_lsn,
    tuple_at,
    tuple_length,
)

_INSERT, _DELETE, _UPDATE, _HOT = (
    heap_redo.INSERT, heap_redo.DELETE, heap_redo.UPDATE, heap_redo.HOT_UPDATE,
)  # fmt: skip
_MULTI_INSERT, _VISIBLE = heap2_redo.MULTI_INSERT, heap2_redo.VISIBLE
XLOG, HEAP2, HEAP = 0, 9, 10
_FPI_FOR_HINT, _FPI = 0xA0, 0xB0
FORK_MASK = 0x0F
BLOCKS_PER_PART = 64
# GONE: a truncation cut the page off, or its relation was dropped.
UNKNOWN, KNOWN, BROKEN, GONE = 0, 1, 2, 3

CHOSEN_ROW = np.dtype([("row", np.uint32), ("relation", np.int32), ("image", np.int32)])
# A page of the store: its relation and block, and its state.
SLOT_ROW = np.dtype([("relation", np.int32), ("block", np.uint32), ("state", np.uint8)])
# A change of a tuple. `length` is 0 if its page was not known.
EVENT_ROW = np.dtype(
    [
        ("start_lsn", np.int64),
        ("end_lsn", np.int64),
        ("xid", np.uint32),
        ("relation", np.int32),
        ("block", np.uint32),
        ("number", np.uint16),
        ("kind", np.uint8),
        ("place", np.int64),  # in the arena
        ("length", np.int32),
    ]
)
SEEN, INSERTED, DELETED, OLD, NEW, UNDONE = 0, 1, 2, 3, 4, 5
RECORD_NOTHING, RECORD_CHANGES, RECORD_VERSIONS = 0, 1, 2
# The most that one record can add.
EVENTS_MARGIN, ARENA_MARGIN = 1200, 4 * PAGE_BYTES
# In `counts`.
SLOTS, EVENTS, ARENA, APPLIED, UNKNOWN_COUNT, BROKEN_COUNT, RELATIONS = 0, 1, 2, 3, 4, 5, 6
COUNTS = 8


@compiled
def hashed(a: Any, b: Any) -> Any:
    x = a * np.int64(-7046029254386353131) ^ b * np.int64(-4417276706812531889)
    x ^= x >> 29
    return x * np.int64(-49064778989728563) ^ x >> 17


@compiled
def find_relation(keys: Any, values: Any, space: Any, node: Any) -> Any:
    """Return the relation's place in the table, or that of the free row where it would be."""
    mask = len(values) - 1
    at = hashed(space, node) & mask
    while values[at] >= 0 and (keys[at, 0] != space or keys[at, 1] != node):
        at = (at + 1) & mask
    return at


@compiled
def choose(
    records: Any, blocks: Any, first: Any, keys: Any, values: Any, low_nodes: Any, takes_all: Any,
    part: Any, parts: Any, whole: Any, counts: Any, chosen: Any,
) -> Any:  # fmt: skip
    """Return (the number of chosen references, the place to go on).

    New relations enter the table if they are wanted: because all are, or because their number is in
    `low_nodes` (catalogs of any database).
    """
    n, space_before, node_before, relation = np.int64(0), np.int64(-1), np.int64(-1), np.int64(-1)
    for k in range(first, len(blocks)):
        block = blocks[k]
        if block.flags & FORK_MASK:
            continue
        rmid = records[block.record].rmid
        if rmid != HEAP and rmid != HEAP2 and rmid != XLOG:
            continue
        space = np.int64(block.tablespace) << 32 | np.int64(block.database)
        node = np.int64(block.relfilenode)
        if space != space_before or node != node_before:
            space_before, node_before = space, node
            at = find_relation(keys, values, space, node)
            relation = np.int64(values[at])
            wanted = takes_all
            if relation < 0 and not wanted:
                for low in low_nodes:
                    wanted = wanted or low == node
            if relation < 0 and wanted:
                if 2 * (counts[RELATIONS] + 1) > len(values):
                    return n, np.int64(k)
                relation = np.int64(counts[RELATIONS])
                keys[at, 0], keys[at, 1], values[at] = space, node, relation
                counts[RELATIONS] += 1
        if relation < 0:
            continue
        number = np.int64(block.block_number)
        if not whole[relation] and (number // BLOCKS_PER_PART + node) % parts != part:
            continue
        chosen[n].row, chosen[n].relation = k, relation
        n += 1
    return n, np.int64(len(blocks))


@compiled
def find_slot(hash_keys: Any, hash_slots: Any, relation: Any, block: Any) -> Any:
    """Return a page's place in the hash table, or that of the free row where it would be."""
    key = relation << 32 | block
    mask = len(hash_keys) - 1
    at = hashed(relation, block) & mask
    while hash_keys[at] >= 0 and hash_keys[at] != key:
        at = (at + 1) & mask
    return at


@compiled
def slot_of(
    hash_keys: Any, hash_slots: Any, slots: Any, counts: Any, relation: Any, block: Any
) -> Any:
    """Return a page's slot, made if necessary, or -1 if there is no room."""
    at = find_slot(hash_keys, hash_slots, relation, block)
    if hash_keys[at] >= 0:
        return np.int64(hash_slots[at])
    slot = np.int64(counts[SLOTS])
    if slot == len(slots) or 2 * (slot + 1) > len(hash_keys):
        return np.int64(-1)
    counts[SLOTS] += 1
    hash_keys[at], hash_slots[at] = relation << 32 | block, slot
    slots[slot].relation, slots[slot].block, slots[slot].state = relation, block, UNKNOWN
    return slot


@compiled
def rehash(hash_keys: Any, hash_slots: Any, slots: Any, used: Any) -> Any:
    """Enter the slots in use into hash tables that are new and empty."""
    for slot in range(used):
        relation, block = np.int64(slots[slot].relation), np.int64(slots[slot].block)
        at = find_slot(hash_keys, hash_slots, relation, block)
        hash_keys[at], hash_slots[at] = relation << 32 | block, slot


@compiled
def restore_image(page: Any, b: Any, block: Any, image: Any, images: Any) -> Any:
    if image >= 0:
        page[:] = images[image]
        return
    begin, hole = np.int64(block.image_offset), np.int64(block.hole_offset)
    gap, length = np.int64(block.hole_length), np.int64(block.image_length)
    page[:hole] = b[begin : begin + hole]
    page[hole : hole + gap] = 0
    page[hole + gap :] = b[begin + hole : begin + length]


@compiled
def role_of(blocks: Any, k: Any) -> Any:
    """Return which page of an UPDATE a reference is to: both, the new one's, or the old one's."""
    if blocks[k].block_id == 1:
        return OLD_PAGE
    behind = k + 1
    if behind == len(blocks) or blocks[behind].record != blocks[k].record:
        return SAME_PAGE
    if blocks[behind].block_id == 1 and blocks[behind].flags & FORK_MASK == 0:
        return NEW_PAGE
    return SAME_PAGE


@compiled
def apply_one(
    page: Any, state: Any, b: Any, record: Any, blocks: Any, k: Any, image: Any, images: Any,
    end_lsn: Any, apply_flag: Any, scratch: Any, major: Any,
) -> Any:  # fmt: skip
    """Redo one record on one page; return (its state, whether it changed, 0 or the misfit)."""
    block = blocks[k]
    if block.flags & HAS_IMAGE and block.image_info & apply_flag:
        restore_image(page, b, block, image, images)
        if get16(page, UPPER) != 0:
            set_lsn(page, end_lsn)
        return KNOWN, True, np.int64(0)
    rmid, info = record.rmid, np.int64(record.info)
    if rmid == XLOG:
        return state, False, np.int64(0)
    op, is_init = info & 0x70, info & 0x80 != 0
    if is_init and block.block_id == 0:
        initialise(page)
        state = KNOWN
    if state != KNOWN:
        return state, False, np.int64(0)
    if get_lsn(page) >= end_lsn:
        return state, False, np.int64(0)
    if not is_sane(page):
        return BROKEN, True, np.int64(-9)
    data = np.int64(block.data_offset)
    end, main, xid = data + np.int64(block.data_length), np.int64(record.main_offset), record.xid
    number = np.int64(block.block_number)
    if rmid == HEAP:
        role, new_block = role_of(blocks, k), number
        if role == OLD_PAGE:
            new_block = np.int64(blocks[k - 1].block_number)
        done = redo_heap(page, b, op, number, data, end, main, np.int64(xid), role, new_block)
    else:
        done = redo_heap2(
            page, b, op, number, data, end, main, np.int64(xid), is_init, scratch, major
        )
    if done < 0:
        return BROKEN, True, done
    if rmid == HEAP or op != _VISIBLE:
        set_lsn(page, end_lsn)
    return KNOWN, True, np.int64(0)


@compiled
def _note(
    page: Any, state: Any, number: Any, kind: Any, xid: Any, block: Any, relation: Any,
    start_lsn: Any, end_lsn: Any, counts: Any, events: Any, arena: Any,
) -> Any:  # fmt: skip
    """Add one event, with a copy of the tuple as it is now."""
    event = events[counts[EVENTS]]
    event.start_lsn, event.end_lsn, event.xid = start_lsn, end_lsn, xid
    event.relation, event.block = relation, block
    event.number, event.kind, event.place, event.length = number, kind, counts[ARENA], 0
    counts[EVENTS] += 1
    if state != KNOWN:
        return
    place = tuple_at(page, number)
    if place < 0:
        return
    length = tuple_length(page, number)
    at = counts[ARENA]
    arena[at : at + length] = page[place : place + length]
    event.length = length
    counts[ARENA] = (at + length + 7) & ~7


@compiled
def note_all(
    page: Any, block: Any, relation: Any, start_lsn: Any, end_lsn: Any, counts: Any, events: Any,
    arena: Any,
) -> Any:  # fmt: skip
    """Add an event for every tuple of a page that was not known before."""
    for number in range(1, item_count(page) + 1):
        if tuple_at(page, number) >= 0:
            _note(
                page, KNOWN, number, SEEN, 0, block, relation, start_lsn, end_lsn, counts,
                events, arena,
            )  # fmt: skip


@compiled
def _note_changes(
    page: Any, state: Any, b: Any, record: Any, blocks: Any, k: Any, relation: Any, start_lsn: Any,
    end_lsn: Any, counts: Any, events: Any, arena: Any,
) -> Any:  # fmt: skip
    """Add events for the tuples that one record names, as they are after it."""
    xid, block, op = record.xid, blocks[k].block_number, np.int64(record.info) & 0x70
    main = np.int64(record.main_offset)
    first, second, kind, kind2 = np.int64(0), np.int64(0), 0, 0
    if record.rmid == HEAP2:
        if op != _MULTI_INSERT:
            return
        for i in range(get16(b, main + 2)):
            number = np.int64(i + 1) if record.info & 0x80 else get16(b, main + 4 + 2 * i)
            _note(
                page, state, number, INSERTED, xid, block, relation, start_lsn, end_lsn,
                counts, events, arena,
            )  # fmt: skip
        return
    if op == _INSERT:
        first, kind = get16(b, main), INSERTED
    elif op == _DELETE:
        first, kind = get16(b, main + 4), UNDONE if b[main + 7] & 8 else DELETED
    elif op in (_UPDATE, _HOT):
        role = role_of(blocks, k)
        if role != NEW_PAGE:
            first, kind = get16(b, main + 4), OLD
        if role != OLD_PAGE:
            second, kind2 = get16(b, main + 12), NEW
    if first:
        _note(
            page, state, first, kind, xid, block, relation, start_lsn, end_lsn, counts,
            events, arena,
        )  # fmt: skip
    if second:
        _note(
            page, state, second, kind2, xid, block, relation, start_lsn, end_lsn, counts,
            events, arena,
        )  # fmt: skip


@compiled
def apply(
    b: Any, records: Any, blocks: Any, start_lsns: Any, end_lsns: Any, chosen: Any, first: Any,
    until: Any, images: Any, apply_flag: Any, major: Any, recorded: Any, pages: Any, slots: Any,
    hash_keys: Any, hash_slots: Any, counts: Any, events: Any, arena: Any, scratch: Any,
) -> Any:  # fmt: skip
    """Redo chosen[first:until]; return the end of the done part, below `until` without room."""
    for i in range(first, until):
        relation, k = np.int64(chosen[i].relation), np.int64(chosen[i].row)
        level = recorded[relation]
        if level and (
            counts[EVENTS] + EVENTS_MARGIN > len(events)
            or counts[ARENA] + ARENA_MARGIN > len(arena)
        ):
            return np.int64(i)
        block = blocks[k]
        slot = slot_of(hash_keys, hash_slots, slots, counts, relation, np.int64(block.block_number))
        if slot < 0:
            return np.int64(i)
        r = np.int64(block.record)
        record, page, before = records[r], pages[slot], np.int64(slots[slot].state)
        image = np.int64(chosen[i].image)
        state, changed, wrong = apply_one(
            page, before, b, record, blocks, k, image, images, end_lsns[r], apply_flag, scratch,
            major,
        )  # fmt: skip
        slots[slot].state = state
        counts[APPLIED] += changed
        counts[UNKNOWN_COUNT] += state == UNKNOWN and record.rmid != XLOG
        counts[BROKEN_COUNT] += wrong < 0
        if level == RECORD_NOTHING or (not changed and state == KNOWN):
            continue
        if level == RECORD_VERSIONS and before != KNOWN and state == KNOWN and is_sane(page):
            note_all(
                page, block.block_number, relation, start_lsns[r], end_lsns[r], counts, events,
                arena,
            )  # fmt: skip
        if record.rmid != XLOG:
            _note_changes(
                page, state, b, record, blocks, k, relation, start_lsns[r], end_lsns[r], counts,
                events, arena,
            )  # fmt: skip
    return np.int64(until)
