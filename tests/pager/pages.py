"""Pages of servers and of pagers, compared as wal_consistency_checking compares them.

Parts of a page that WAL does not determine are masked. For heap pages, heap_mask() masks hint bits,
unused space, LSN and checksum. A sequence's value and its number of cached values are masked, since
the server's run ahead of what it has logged. The flags of an index page's dead items are masked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from walkeeper_pager.page_names import NoSuchPage, NotReplayed, Place
from walkeeper_pager.pager import Pager
from walkeeper_replay.redo.page import LOWER, PAGE_BYTES, SPECIAL, UPPER
from walkeeper_replay.redo.redo_loops import loops
from walkeeper_wal.records.segment import Bytes

SEQUENCE_MAGIC = b"\x17\x17\x00\x00"
_BTREE_GARBAGE = 0x40


def _number_at(page: Bytes, place: int) -> int:
    return int.from_bytes(page[place : place + 2].tobytes(), "little")


def masked(page: bytes | Bytes, block: int) -> bytes:
    """Return the bytes on which two copies of a page have to agree."""
    copy: Bytes = np.frombuffer(bytes(page), np.uint8).copy()
    special = _number_at(copy, SPECIAL)
    if special == PAGE_BYTES:
        loops.mask_heap_page(copy, block)
    elif special == PAGE_BYTES - 8 and copy[special : special + 4].tobytes() == SEQUENCE_MAGIC:
        return copy[:special].tobytes()[24:28] + b"sequence"
    elif 24 <= special < PAGE_BYTES:
        copy[:12] = 0
        copy[20:24] = 0
        lower = _number_at(copy, LOWER)
        if 24 <= lower <= special:
            items = copy[24 : 24 + (lower - 24) // 4 * 4].view(np.uint32)
            # A normal item that is known to be dead.
            items[items >> 15 & 3 == 3] &= ~np.uint32(1 << 16)
            copy[lower : _number_at(copy, UPPER)] = 0
        if special == PAGE_BYTES - 16:
            copy[special + 12] &= ~np.uint8(_BTREE_GARBAGE) & 0xFF
    return copy.tobytes()


def files_of(data: Path) -> Iterator[tuple[Place, Bytes]]:
    """Yield every main fork of a data directory."""
    for folder in [data / "global", *sorted((data / "base").iterdir())]:
        for file in sorted(folder.iterdir()):
            if file.name.isdigit():
                place = Place.parse(str(file.relative_to(data)))
                yield place, np.fromfile(file, np.uint8).reshape(-1, PAGE_BYTES)


def compare_all(pager: Pager, data: Path) -> Counter[str]:
    """Compare each page of a stopped server with the pager's newest; a difference is an error."""
    counts: Counter[str] = Counter()
    for place, pages in files_of(data):
        for block, expected in enumerate(pages):
            kind = "heap" if _number_at(expected, SPECIAL) == PAGE_BYTES else "other"
            try:
                found, _ = pager.page(place, block)
            except NotReplayed as refused:
                assert kind == "other", refused
                counts["refused"] += 1
                continue
            except NoSuchPage:
                assert not expected.any(), f"{place} {block} is not known"
                counts["empty"] += 1
                continue
            ours, theirs = masked(found, block), masked(expected, block)
            pairs = enumerate(zip(ours, theirs, strict=True))
            different = [n for n, (a, b) in pairs if a != b]
            assert not different, f"{place} {block} ({kind}): bytes {different[:20]}"
            counts[kind] += 1
    return counts
