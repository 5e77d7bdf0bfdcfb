"""Redo of Heap2 records on one page: prune, vacuum, freeze, visible, multi-insert, lock. Compiled.

Contract: that of `heap_redo`. The names and layouts of these records differ between 13 and 18. 13
has CLEAN and FREEZE_PAGE. 14 and 15 have PRUNE, VACUUM, FREEZE_PAGE. 16 freezes by plans. 17 and 18
have one layout for three kinds of pruning. Source: heapam_xlog.h, heapam.c, pruneheap.c of each.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from walkeeper_replay.redo.compiled import compiled
from walkeeper_replay.redo.heap_redo import (
    clear_all_visible,
    put_header,
    set_all_visible,
    set_infobits,
)
from walkeeper_replay.redo.page import (
    CID,
    DEAD,
    INFOMASK,
    INFOMASK2,
    NO_ITEM,
    NO_ROOM,
    REDIRECT,
    TUPLE_HEADER_BYTES,
    XMAX,
    add_item,
    get16,
    get32,
    has_item,
    put16,
    put32,
    put_item,
    repair_fragmentation,
    truncate_items,
    tuple_at,
)

REWRITE, VISIBLE, MULTI_INSERT, LOCK_UPDATED, NEW_CID = 0x00, 0x40, 0x50, 0x60, 0x70
_PRUNE, _VACUUM, _FREEZE = 0x10, 0x20, 0x30
# xl_heap_prune's flags since 17.
_CLEANUP_LOCK, _FREEZE_PLANS, _REDIRECTIONS, _DEAD_ITEMS, _NOW_UNUSED = 4, 0x10, 0x20, 0x40, 0x80
_PLAN_BYTES = 12
_FREEZE_XVAC, _INVALID_XVAC, _FROZEN_XID = 2, 4, 2


@compiled
def _redirect(page: Any, b: Any, p: Any, count: Any, end: Any) -> Any:
    """Redirect `count` pairs of item numbers; return the place after them, or an error."""
    if p + 4 * count > end:
        return np.int64(NO_ROOM)
    for _ in range(count):
        if not has_item(page, get16(b, p)):
            return np.int64(NO_ITEM)
        put_item(page, get16(b, p), get16(b, p + 2) | REDIRECT << 15)
        p += 4
    return p


@compiled
def _set_items(page: Any, b: Any, p: Any, count: Any, end: Any, item: Any) -> Any:
    """Set `count` items to dead or unused; return the place after them, or an error."""
    if p + 2 * count > end:
        return np.int64(NO_ROOM)
    for _ in range(count):
        if not has_item(page, get16(b, p)):
            return np.int64(NO_ITEM)
        put_item(page, get16(b, p), item)
        p += 2
    return p


@compiled
def _freeze(page: Any, b: Any, number: Any, xmax: Any, mask2: Any, mask: Any, flags: Any) -> Any:
    place = tuple_at(page, number)
    if place < 0:
        return place
    put32(page, place + XMAX, xmax)
    if flags & _FREEZE_XVAC:
        put32(page, place + CID, _FROZEN_XID)
    if flags & _INVALID_XVAC:
        put32(page, place + CID, 0)
    put16(page, place + INFOMASK2, mask2)
    put16(page, place + INFOMASK, mask)
    return np.int64(0)


@compiled
def _freeze_plans(page: Any, b: Any, plans: Any, count: Any, p: Any, end: Any) -> Any:
    """Apply each plan {xmax, infomask2, infomask, flags, ntuples}; tuples' numbers are at `p`."""
    for k in range(count):
        z = plans + _PLAN_BYTES * k
        for _ in range(get16(b, z + 10)):
            if p + 2 > end:
                return np.int64(NO_ROOM)
            flags = np.int64(b[z + 8])
            done = _freeze(
                page, b, get16(b, p), get32(b, z), get16(b, z + 4), get16(b, z + 6), flags
            )
            if done < 0:
                return done
            p += 2
    return np.int64(0)


@compiled
def _prune_17(page: Any, b: Any, p: Any, end: Any, flags: Any, scratch: Any, major: Any) -> Any:
    plans, count = np.int64(0), np.int64(0)
    if flags & _FREEZE_PLANS:
        count = get16(b, p)
        plans = p + 4
        p = plans + _PLAN_BYTES * count
    if flags & _REDIRECTIONS:
        p = _redirect(page, b, p + 2, get16(b, p), end)
        if p < 0:
            return p
    if flags & _DEAD_ITEMS:
        p = _set_items(page, b, p + 2, get16(b, p), end, DEAD << 15)
        if p < 0:
            return p
    if flags & _NOW_UNUSED:
        p = _set_items(page, b, p + 2, get16(b, p), end, 0)
        if p < 0:
            return p
    if flags & (_REDIRECTIONS | _DEAD_ITEMS | _NOW_UNUSED):
        if flags & _CLEANUP_LOCK:
            done = repair_fragmentation(page, scratch, major)
            if done < 0:
                return done
        else:
            truncate_items(page)
    return _freeze_plans(page, b, plans, count, p, end)


@compiled
def _prune(page: Any, b: Any, p: Any, end: Any, main: Any, scratch: Any, major: Any) -> Any:
    """Redo CLEAN of 13, PRUNE of 14 to 16: redirected, dead, and the rest unused."""
    p = _redirect(page, b, p, get16(b, main + 4), end)
    if p < 0:
        return p
    p = _set_items(page, b, p, get16(b, main + 6), end, DEAD << 15)
    if p < 0:
        return p
    p = _set_items(page, b, p, (end - p) >> 1, end, 0)
    if p < 0:
        return p
    return repair_fragmentation(page, scratch, major)


@compiled
def _freeze_page(page: Any, b: Any, p: Any, end: Any, main: Any, major: Any) -> Any:
    count = get16(b, main + 4)
    if p + _PLAN_BYTES * count > end:
        return np.int64(NO_ROOM)
    if major >= 16:
        return _freeze_plans(page, b, p, count, p + _PLAN_BYTES * count, end)
    for _ in range(count):
        flags = np.int64(b[p + 10])
        done = _freeze(
            page, b, get16(b, p + 4), get32(b, p), get16(b, p + 6), get16(b, p + 8), flags
        )
        if done < 0:
            return done
        p += _PLAN_BYTES
    return np.int64(0)


@compiled
def _multi_insert(
    page: Any, b: Any, block: Any, data: Any, end: Any, main: Any, xid: Any, is_init: Any
) -> Any:
    flags, count, p = np.int64(b[main]), get16(b, main + 2), data
    for k in range(count):
        number = np.int64(k + 1) if is_init else get16(b, main + 4 + 2 * k)
        p += (p - data) & 1
        if p + 7 > end or p + 7 + get16(b, p) > end:
            return np.int64(NO_ROOM)
        length = get16(b, p)
        size = length + TUPLE_HEADER_BYTES
        place = add_item(page, number, size)
        if place < 0:
            return place
        put_header(page, place, b, p + 2, xid, block, number)
        p += 7
        page[place + TUPLE_HEADER_BYTES : place + size] = b[p : p + length]
        p += length
    if flags & 1:
        clear_all_visible(page)
    if flags & 32:
        set_all_visible(page)
    return np.int64(0)


@compiled
def _lock_updated(page: Any, b: Any, main: Any) -> Any:
    place = tuple_at(page, get16(b, main + 4))
    if place < 0:
        return place
    set_infobits(page, place, np.int64(b[main + 6]))
    put32(page, place + XMAX, get32(b, main))
    return np.int64(0)


@compiled
def redo_heap2(
    page: Any, b: Any, op: Any, block: Any, data: Any, end: Any, main: Any, xid: Any,
    is_init: Any, scratch: Any, major: Any,
) -> Any:  # fmt: skip
    """Redo one Heap2 record on one page, which is the heap page of a VISIBLE record."""
    if op == MULTI_INSERT:
        return _multi_insert(page, b, block, data, end, main, xid, is_init)
    if op == VISIBLE:
        set_all_visible(page)
        return np.int64(0)
    if op == LOCK_UPDATED:
        return _lock_updated(page, b, main)
    if op in (REWRITE, NEW_CID):
        return np.int64(0)
    if major >= 17:
        return _prune_17(page, b, data, end, np.int64(b[main + 1]), scratch, major)
    if op == _PRUNE:
        return _prune(page, b, data, end, main, scratch, major)
    if op == _VACUUM and major >= 14:
        p = _set_items(page, b, data, get16(b, main), end, 0)
        if p < 0:
            return p
        truncate_items(page)
        return np.int64(0)
    if (op == _FREEZE and major >= 14) or (op == _VACUUM and major == 13):
        return _freeze_page(page, b, data, end, main, major)
    return np.int64(0)
