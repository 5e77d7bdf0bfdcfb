"""Redo of Heap records on one page: insert, delete, update, lock, in-place, confirm. Compiled.

Contract: `redo_heap` changes a page as PostgreSQL 13 to 18 do in recovery, and returns 0. It
returns a negative number if the page is not as the record found it. The page's content must then
not be used. Each block's page follows from its own earlier state and the record alone. Prefix and
suffix of an update are taken from the same page. So blocks can be redone in any order, and in
parallel. References to blocks of other forks never come here. Source: heapam_xlog.h, heapam.c.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from walkeeper_replay.redo.compiled import compiled
from walkeeper_replay.redo.page import (
    ALL_VISIBLE,
    CID,
    FLAGS,
    HOFF,
    INFOMASK,
    INFOMASK2,
    NO_ITEM,
    NO_ROOM,
    PAGE_BYTES,
    TUPLE_HEADER_BYTES,
    XMAX,
    XMIN,
    add_item,
    get16,
    get32,
    put16,
    put32,
    set_ctid,
    set_prunable,
    tuple_at,
    tuple_length,
)

INSERT, DELETE, UPDATE, TRUNCATE, HOT_UPDATE, CONFIRM, LOCK, INPLACE = (
    0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70,
)  # fmt: skip
# t_infomask and t_infomask2.
_COMBOCID, _XMAX_EXCL, _XMAX_KEYSHR, _XMAX_LOCK_ONLY = 0x0020, 0x0040, 0x0010, 0x0080
_XMAX_IS_MULTI, _MOVED, _XMAX_BITS = 0x1000, 0xC000, 0x1CD0
_KEYS_UPDATED, _HOT_UPDATED = 0x2000, 0x4000
_MOVED_PARTITIONS_BLOCK, _MOVED_PARTITIONS_NUMBER = 0xFFFFFFFF, 0xFFFD
# Flags of xl_heap_insert and similar records.
_VISIBLE_CLEARED, _NEW_VISIBLE_CLEARED, _ALL_FROZEN_SET = 1, 2, 32
_DELETE_IS_SUPER, _DELETE_IS_PARTITION_MOVE = 8, 16
_PREFIX_FROM_OLD, _SUFFIX_FROM_OLD = 0x20, 0x40
SAME_PAGE, NEW_PAGE, OLD_PAGE = 0, 1, 2  # the pages of an update


@compiled
def set_infobits(page: Any, place: Any, infobits: Any) -> Any:
    """Set the record's bits of xmax, after clearing HEAP_XMAX_BITS and HEAP_MOVED."""
    mask = get16(page, place + INFOMASK) & ~(_XMAX_BITS | _MOVED)
    mask2 = get16(page, place + INFOMASK2) & ~_KEYS_UPDATED
    if infobits & 1:
        mask |= _XMAX_IS_MULTI
    if infobits & 2:
        mask |= _XMAX_LOCK_ONLY
    if infobits & 4:
        mask |= _XMAX_EXCL
    if infobits & 8:
        mask |= _XMAX_KEYSHR
    if infobits & 16:
        mask2 |= _KEYS_UPDATED
    put16(page, place + INFOMASK, mask)
    put16(page, place + INFOMASK2, mask2)
    return mask


@compiled
def set_cmax(page: Any, place: Any) -> Any:
    """Set cmax to FirstCommandId."""
    put32(page, place + CID, 0)
    put16(page, place + INFOMASK, get16(page, place + INFOMASK) & ~_COMBOCID)


@compiled
def clear_all_visible(page: Any) -> Any:
    page[FLAGS] = np.int64(page[FLAGS]) & ~ALL_VISIBLE


@compiled
def set_all_visible(page: Any) -> Any:
    page[FLAGS] = np.int64(page[FLAGS]) | ALL_VISIBLE


@compiled
def put_header(
    page: Any, place: Any, b: Any, header: Any, xid: Any, block: Any, number: Any
) -> Any:
    """Write a new tuple's header from an xl_heap_header {infomask2, infomask, hoff}."""
    page[place : place + TUPLE_HEADER_BYTES] = 0
    put32(page, place + XMIN, xid)
    put16(page, place + INFOMASK2, get16(b, header))
    put16(page, place + INFOMASK, get16(b, header + 2))
    page[place + HOFF] = b[header + 4]
    set_ctid(page, place, block, number)


@compiled
def _insert(page: Any, b: Any, block: Any, data: Any, data_end: Any, main: Any, xid: Any) -> Any:
    number, flags = get16(b, main), np.int64(b[main + 2])
    size = data_end - data - 5 + TUPLE_HEADER_BYTES
    if data_end - data < 5:
        return np.int64(NO_ROOM)
    place = add_item(page, number, size)
    if place < 0:
        return place
    put_header(page, place, b, data, xid, block, number)
    page[place + TUPLE_HEADER_BYTES : place + size] = b[data + 5 : data_end]
    if flags & _VISIBLE_CLEARED:
        clear_all_visible(page)
    if flags & _ALL_FROZEN_SET:
        set_all_visible(page)
    return np.int64(0)


@compiled
def _delete(page: Any, b: Any, block: Any, main: Any, xid: Any) -> Any:
    number, flags = get16(b, main + 4), np.int64(b[main + 7])
    place = tuple_at(page, number)
    if place < 0:
        return place
    mask2 = get16(page, place + INFOMASK2) & ~_HOT_UPDATED
    put16(page, place + INFOMASK2, mask2)
    set_infobits(page, place, np.int64(b[main + 6]))
    if flags & _DELETE_IS_SUPER:
        put32(page, place + XMIN, 0)
    else:
        put32(page, place + XMAX, get32(b, main))
    set_cmax(page, place)
    set_prunable(page, xid)
    if flags & _VISIBLE_CLEARED:
        clear_all_visible(page)
    if flags & _DELETE_IS_PARTITION_MOVE:
        set_ctid(page, place, _MOVED_PARTITIONS_BLOCK, _MOVED_PARTITIONS_NUMBER)
    else:
        set_ctid(page, place, block, number)
    return np.int64(0)


@compiled
def _update_old(page: Any, b: Any, new_block: Any, main: Any, xid: Any, is_hot: Any) -> Any:
    """Update the old version's header; return its place."""
    flags = np.int64(b[main + 7])
    place = tuple_at(page, get16(b, main + 4))
    if place < 0:
        return place
    set_infobits(page, place, np.int64(b[main + 6]))
    mask2 = get16(page, place + INFOMASK2) & ~_HOT_UPDATED
    put16(page, place + INFOMASK2, mask2 | _HOT_UPDATED if is_hot else mask2)
    put32(page, place + XMAX, get32(b, main))
    set_cmax(page, place)
    set_ctid(page, place, new_block, get16(b, main + 12))
    set_prunable(page, xid)
    if flags & _VISIBLE_CLEARED:
        clear_all_visible(page)
    return place


@compiled
def _update_new(
    page: Any, b: Any, block: Any, data: Any, data_end: Any, main: Any, xid: Any, old: Any,
    old_length: Any,
) -> Any:  # fmt: skip
    """Write the new version. `old` is the old one's place, if on this page, for shared bytes."""
    flags, number = np.int64(b[main + 7]), get16(b, main + 12)
    p, prefix, suffix = data, np.int64(0), np.int64(0)
    if flags & _PREFIX_FROM_OLD:
        prefix = get16(b, p)
        p += 2
    if flags & _SUFFIX_FROM_OLD:
        suffix = get16(b, p)
        p += 2
    header = p
    p += 5
    own = data_end - p
    if own < 0 or (prefix + suffix and old < 0):
        return np.int64(NO_ROOM)
    size = TUPLE_HEADER_BYTES + own + prefix + suffix
    start = old + np.int64(page[old + HOFF]) if old >= 0 else np.int64(0)
    if start + prefix > PAGE_BYTES or old_length < suffix:
        return np.int64(NO_ITEM)
    place = add_item(page, number, size)
    if place < 0:
        return place
    put_header(page, place, b, header, xid, block, number)
    put32(page, place + XMAX, get32(b, main + 8))
    at = place + TUPLE_HEADER_BYTES
    before = np.int64(b[header + 4]) - TUPLE_HEADER_BYTES if prefix else own
    if before < 0 or before > own:
        return np.int64(NO_ITEM)
    page[at : at + before] = b[p : p + before]
    at += before
    for k in range(prefix):
        page[at + k] = page[start + k]
    at += prefix
    page[at : at + own - before] = b[p + before : data_end]
    at += own - before
    for k in range(suffix):
        page[at + k] = page[old + old_length - suffix + k]
    if flags & _NEW_VISIBLE_CLEARED:
        clear_all_visible(page)
    return np.int64(0)


@compiled
def _update(
    page: Any, b: Any, block: Any, data: Any, data_end: Any, main: Any, xid: Any, is_hot: Any,
    role: Any, new_block: Any,
) -> Any:  # fmt: skip
    old, length = np.int64(-1), np.int64(0)
    if role != NEW_PAGE:
        old = _update_old(page, b, new_block, main, xid, is_hot)
        if old < 0:
            return old
        length = tuple_length(page, get16(b, main + 4))
    if role == OLD_PAGE:
        return np.int64(0)
    return _update_new(page, b, block, data, data_end, main, xid, old, length)


@compiled
def _lock(page: Any, b: Any, block: Any, main: Any) -> Any:
    number = get16(b, main + 4)
    place = tuple_at(page, number)
    if place < 0:
        return place
    mask = set_infobits(page, place, np.int64(b[main + 6]))
    excl_only = mask & (_XMAX_IS_MULTI | _XMAX_EXCL | _XMAX_KEYSHR) == _XMAX_EXCL
    if mask & _XMAX_LOCK_ONLY or excl_only:
        put16(page, place + INFOMASK2, get16(page, place + INFOMASK2) & ~_HOT_UPDATED)
        set_ctid(page, place, block, number)
    put32(page, place + XMAX, get32(b, main))
    set_cmax(page, place)
    return np.int64(0)


@compiled
def redo_heap(
    page: Any, b: Any, op: Any, block: Any, data: Any, data_end: Any, main: Any, xid: Any,
    role: Any, new_block: Any,
) -> Any:  # fmt: skip
    """Redo one Heap record on one page; see the module. `op` is its info without +INIT."""
    if op == INSERT:
        return _insert(page, b, block, data, data_end, main, xid)
    if op == DELETE:
        return _delete(page, b, block, main, xid)
    if op in (UPDATE, HOT_UPDATE):
        hot = op == HOT_UPDATE
        return _update(page, b, block, data, data_end, main, xid, hot, role, new_block)
    if op == LOCK:
        return _lock(page, b, block, main)
    if op == CONFIRM:
        place = tuple_at(page, get16(b, main))
        if place >= 0:
            set_ctid(page, place, block, get16(b, main))
        return min(place, np.int64(0))
    if op == INPLACE:
        number = get16(b, main)
        place = tuple_at(page, number)
        if place < 0:
            return place
        start = place + np.int64(page[place + HOFF])
        if start + data_end - data > place + tuple_length(page, number):
            return np.int64(NO_ROOM)
        page[start : start + data_end - data] = b[data:data_end]
    return np.int64(0)
