"""Checkpoint spacing: the number of page images if checkpoints had been T apart.

After a checkpoint, the first change of a block puts its whole page into WAL, unless it makes the
page anew. So block references and their times alone give the number of images of any spacing. It is
the number of blocks whose first change in an interval does not make them anew. Contract: one block
in SAMPLE is followed, chosen by its number's hash, so that memory is 16 bytes for every SAMPLE
block references. The real checkpoints, counted the same way, show the error.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from walkeeper_history.records.segment import Column
from walkeeper_history.records.versions import RMGR_IDS
from walkeeper_history.wal.reading import Batch

SAMPLE = 16
WILL_INIT = 0x40
_FACTORS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5)


@dataclass(frozen=True, slots=True)
class Spacing:
    """The cost of checkpoints `seconds` apart, or with None, of the real checkpoints."""

    seconds: int | None
    images: int
    image_bytes: int


@dataclass(slots=True)
class Touches:
    """The touches of sampled blocks, in the order of the log: block (hashed), LSN, made anew."""

    blocks: list[Column] = field(default_factory=list)
    lsns: list[Column] = field(default_factory=list)
    anew: list[Column] = field(default_factory=list)

    def add_batch(self, batch: Batch) -> None:
        references, records = batch.blocks, batch.records
        key = np.zeros(len(references), np.uint64)
        parts = ("tablespace", "relfilenode", "block_number", "flags")
        for name, factor in zip(parts, _FACTORS, strict=True):
            value = references[name] & 0x0F if name == "flags" else references[name]
            key = (key ^ value.astype(np.uint64)) * np.uint64(factor)
            key ^= key >> np.uint64(29)
        # XLOG's own images do not depend on the time of the last checkpoint.
        changes = records["rmid"][references["record"]] != RMGR_IDS["XLOG"]
        chosen = (key % np.uint64(SAMPLE) == 0) & changes
        self.blocks.append(key[chosen])
        self.lsns.append(batch.start_lsn()[references["record"][chosen]])
        self.anew.append(references["flags"][chosen] & WILL_INIT != 0)

    def extend(self, other: Touches) -> None:
        self.blocks += other.blocks
        self.lsns += other.lsns
        self.anew += other.anew


def spacings(
    touches: Touches,
    redo_lsns: Column,
    times: tuple[Column, Column],
    seconds: tuple[int, ...],
    bytes_of_an_image: float,
) -> list[Spacing]:
    """Return the real spacing, and then one for each of `seconds`.

    `times` are LSNs and the seconds at which they were reached.
    """
    if not touches.blocks:
        return []
    blocks, lsns, anew = (
        np.concatenate(column) for column in (touches.blocks, touches.lsns, touches.anew)
    )
    at = np.interp(lsns, *times)
    found = []
    for each in (None, *seconds):
        interval = (
            np.searchsorted(redo_lsns, lsns, side="right")
            if each is None
            else ((at - times[1][0]) // each).astype(np.int64)
        )
        images = SAMPLE * _first_touches(blocks, interval, anew)
        found.append(Spacing(each, images, int(images * bytes_of_an_image)))
    return found


def _first_touches(blocks: Column, interval: Column, anew: Column) -> int:
    order = np.lexsort((interval, blocks))  # stable: touches stay in the order of the log
    blocks, interval, anew = blocks[order], interval[order], anew[order]
    first = np.ones(len(blocks), bool)
    first[1:] = (blocks[1:] != blocks[:-1]) | (interval[1:] != interval[:-1])
    return int((first & ~anew).sum())
