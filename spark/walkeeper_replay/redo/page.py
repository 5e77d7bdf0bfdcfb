"""A heap page and its items, as redo reads and changes them. Compiled.

Contract: a page is 8192 bytes. No access leaves it, with any content. Places are checked before
they are used, and a misfit gives a negative number. Layout: bufpage.h, itemid.h, htup_details.h.
Behaviour: bufpage.c of each version (`major`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from walkeeper_replay.redo.compiled import compiled

PAGE_BYTES = 8192
HEADER_BYTES = 24
# In a page's header.
LSN, FLAGS, LOWER, UPPER, SPECIAL, SIZE_VERSION, PRUNE_XID = 0, 10, 12, 14, 16, 18, 20
ALL_VISIBLE = 4
# An item's flags.
UNUSED, NORMAL, REDIRECT, DEAD = 0, 1, 2, 3
# In a tuple's header.
XMIN, XMAX, CID, CTID, INFOMASK2, INFOMASK, HOFF = 0, 4, 8, 12, 18, 20, 22
TUPLE_HEADER_BYTES = 23

NO_ROOM, NO_ITEM, TAKEN = -1, -2, -3


@compiled
def get16(b: Any, p: Any) -> Any:
    return np.int64(b[p]) | np.int64(b[p + 1]) << 8


@compiled
def get32(b: Any, p: Any) -> Any:
    return (
        np.int64(b[p])
        | np.int64(b[p + 1]) << 8
        | np.int64(b[p + 2]) << 16
        | np.int64(b[p + 3]) << 24
    )


@compiled
def put16(b: Any, p: Any, value: Any) -> Any:
    b[p] = value & 255
    b[p + 1] = value >> 8 & 255


@compiled
def put32(b: Any, p: Any, value: Any) -> Any:
    b[p] = value & 255
    b[p + 1] = value >> 8 & 255
    b[p + 2] = value >> 16 & 255
    b[p + 3] = value >> 24 & 255


@compiled
def set_lsn(page: Any, lsn: Any) -> Any:
    put32(page, 0, lsn >> 32)
    put32(page, 4, lsn & 0xFFFFFFFF)


@compiled
def get_lsn(page: Any) -> Any:
    return get32(page, 0) << 32 | get32(page, 4)


@compiled
def initialise(page: Any) -> Any:
    page[:] = 0
    put16(page, LOWER, HEADER_BYTES)
    put16(page, UPPER, PAGE_BYTES)
    put16(page, SPECIAL, PAGE_BYTES)
    put16(page, SIZE_VERSION, PAGE_BYTES | 4)


@compiled
def is_sane(page: Any) -> Any:
    """Return whether the page can have items and tuples; a new page is all zeros."""
    lower, upper, special = get16(page, LOWER), get16(page, UPPER), get16(page, SPECIAL)
    return lower >= HEADER_BYTES and lower <= upper and upper <= special and special <= PAGE_BYTES


@compiled
def item_count(page: Any) -> Any:
    return (get16(page, LOWER) - HEADER_BYTES) >> 2


@compiled
def get_item(page: Any, number: Any) -> Any:
    return get32(page, HEADER_BYTES + 4 * (number - 1))


@compiled
def put_item(page: Any, number: Any, item: Any) -> Any:
    put32(page, HEADER_BYTES + 4 * (number - 1), item)


@compiled
def has_item(page: Any, number: Any) -> Any:
    return number >= 1 and number <= item_count(page)


@compiled
def tuple_at(page: Any, number: Any) -> Any:
    """Return the place of a normal item's tuple, or NO_ITEM if there is none."""
    if not has_item(page, number):
        return np.int64(NO_ITEM)
    item = get_item(page, number)
    if item >> 15 & 3 != NORMAL:
        return np.int64(NO_ITEM)
    place, length = item & 0x7FFF, item >> 17
    if length < TUPLE_HEADER_BYTES or place + length > PAGE_BYTES:
        return np.int64(NO_ITEM)
    return place


@compiled
def tuple_length(page: Any, number: Any) -> Any:
    return get_item(page, number) >> 17


@compiled
def add_item(page: Any, number: Any, size: Any) -> Any:
    """Add an item at a free place or the next one; return its bytes' place, or an error.

    This is PageAddItem.
    """
    lower, upper = get16(page, LOWER), get16(page, UPPER)
    count = item_count(page)
    if number < 1 or number > count + 1:
        return np.int64(NO_ITEM)
    if number == count + 1:
        lower += 4
    else:
        item = get_item(page, number)
        if item >> 15 & 3 != UNUSED or item >> 17 != 0:
            return np.int64(TAKEN)
    upper -= (size + 7) & ~7
    if lower > upper:
        return np.int64(NO_ROOM)
    put_item(page, number, upper | NORMAL << 15 | size << 17)
    put16(page, LOWER, lower)
    put16(page, UPPER, upper)
    return upper


@compiled
def truncate_items(page: Any) -> Any:
    """Remove unused items at the end, except the first item, as PageTruncateLinePointerArray
    does."""
    count = item_count(page)
    while count > 1 and get_item(page, count) >> 15 & 3 == UNUSED:
        count -= 1
    put16(page, LOWER, HEADER_BYTES + 4 * count)


@compiled
def repair_fragmentation(page: Any, scratch: Any, major: Any) -> Any:
    """Move tuples to the end of the page, without gaps, as PageRepairFragmentation does.

    Tuples move in the order of their items since 14, by their place in 13. Since 15 unused items at
    the end go, too.
    """
    count = item_count(page)
    places = np.empty(count, np.int64)
    numbers = np.empty(count, np.int64)
    stored, last = np.int64(0), np.int64(0)
    for number in range(1, count + 1):
        item = get_item(page, number)
        if item >> 15 & 3 == UNUSED:
            put_item(page, number, 0)
            continue
        last = np.int64(number)
        if item >> 17 != 0:
            if (item & 0x7FFF) + (item >> 17) > PAGE_BYTES:
                return np.int64(NO_ITEM)
            places[stored], numbers[stored] = item & 0x7FFF, number
            stored += 1
    upper = get16(page, SPECIAL)
    if stored:
        order = np.argsort(-places[:stored]) if major < 14 else np.arange(stored)
        scratch[:] = page
        for k in range(stored):
            number = numbers[order[k]]
            item = get_item(page, number)
            place, length = item & 0x7FFF, item >> 17
            upper -= (length + 7) & ~7
            if upper < get16(page, LOWER):
                return np.int64(NO_ROOM)
            # Padding is no part of a tuple: it becomes zeros.
            page[upper : upper + length] = scratch[place : place + length]
            page[upper + length : upper + ((length + 7) & ~7)] = 0
            put_item(page, number, upper | item & ~0x7FFF)
    put16(page, UPPER, upper)
    if last != count and major >= 15:
        put16(page, LOWER, HEADER_BYTES + 4 * last)
    return np.int64(0)


@compiled
def set_prunable(page: Any, xid: Any) -> Any:
    """Set the oldest transaction whose tuples can be pruned later, as PageSetPrunable does."""
    known = get32(page, PRUNE_XID)
    if known < 3 or (xid - known) & 0xFFFFFFFF >= 0x80000000:
        put32(page, PRUNE_XID, xid)


@compiled
def set_ctid(page: Any, place: Any, block: Any, number: Any) -> Any:
    put16(page, place + CTID, block >> 16 & 0xFFFF)
    put16(page, place + CTID + 2, block & 0xFFFF)
    put16(page, place + CTID + 4, number)
