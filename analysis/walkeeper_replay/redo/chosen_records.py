"""Some records of a batch, with their bytes, as a small batch that can travel and be kept.

    chosen_records(batch, rows, bare) -> Batch       `bare` rows have no bytes and no blocks
    control_records(batch, store)     -> Batch       all that catalogs and transactions need
    records_of(batch, share)          -> Batch       all that a share of some relations needs

Contract: consumers of `pass_over` find in such a batch, record for record, what they find in the
whole one, with the same LSNs. Control records are those of transactions, checkpoints and whole
files, and those that change a catalog. The first record of each xid and the last record are bare.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from walkeeper_history.rows.ended import naming_endings
from walkeeper_replay.redo.apply import BLOCKS_PER_PART
from walkeeper_replay.redo.store import Relation
from walkeeper_wal.records.segment import SLACK_BYTES, Bytes, Column
from walkeeper_wal.records.versions import RMGR_IDS
from walkeeper_wal.sources.reading import Batch

_XLOG, _XACT, _STANDBY, _MULTIXACT = (
    RMGR_IDS[name] for name in ("XLOG", "Transaction", "Standby", "MultiXact")
)
WHOLE_FILES = tuple(RMGR_IDS[name] for name in ("Storage", "Database", "RelMap"))
SHORT_BYTES = 256
_PAGE_IMAGES, _RUNNING, _CREATE_ID = (0xA0, 0xB0), 0x10, 0x20


@dataclass(frozen=True, slots=True)
class ChosenRecords(Batch):
    """A batch that owns its bytes and knows its records' places."""

    starts: Column
    ends: Column
    timelines: Column

    def start_lsn(self) -> Column:
        return self.starts

    def end_lsn(self) -> Column:
        return self.ends

    def timeline(self) -> Column:
        return self.timelines

    def span(self) -> tuple[int, int]:
        return int(self.starts[0]), int(self.ends[-1])

    def head(self, count: int) -> Batch:
        every = np.arange(len(self.records)) < count
        return chosen_records(self, every)


@dataclass(frozen=True, slots=True)
class Share:
    """The part `part` of `parts` of the blocks of `relations`, and all blocks of `whole`."""

    relations: frozenset[Relation]
    whole: frozenset[Relation]
    part: int = 0
    parts: int = 1


def control_records(batch: Batch, low_nodes: tuple[int, ...], files: list[Relation]) -> Batch:
    """Return what catalogs with these numbers, or in these files, need, and all transactions."""
    records, blocks = batch.records, batch.blocks
    rmids, kinds = records["rmid"], records["info"] & 0xF0
    whole = (rmids == _XACT) | np.isin(rmids, WHOLE_FILES)
    whole |= (rmids == _XLOG) & ~np.isin(kinds, _PAGE_IMAGES)
    whole |= (rmids == _STANDBY) & (kinds == _RUNNING)
    whole |= (rmids == _MULTIXACT) & (kinds == _CREATE_ID)
    low = np.isin(blocks["relfilenode"], np.array(low_nodes, np.int64))
    whole[blocks["record"][low | _is_of(blocks, frozenset(files))]] = True
    bare = np.zeros(len(records), bool)
    bare[np.unique(records["xid"], return_index=True)[1]] = True
    bare[-1:] = True
    return chosen_records(batch, whole, bare)


def records_of(batch: Batch, share: Share) -> Batch:
    """Return the records that a PageStore with this share needs, and changes of whole files."""
    records, blocks = batch.records, batch.blocks
    chosen = np.isin(records["rmid"], WHOLE_FILES)
    chosen[naming_endings(batch)] = True  # they may drop files
    places = blocks["block_number"].astype(np.int64) // BLOCKS_PER_PART
    own = (places + blocks["relfilenode"]) % share.parts == share.part
    own &= _is_of(blocks, share.relations)
    chosen[blocks["record"][own | _is_of(blocks, share.whole)]] = True
    return chosen_records(batch, chosen)


def _is_of(blocks: Column, files: frozenset[Relation]) -> Column:
    found: Column = np.zeros(len(blocks), bool)
    for space, database, node in files:
        own = (blocks["relfilenode"] == node) & (blocks["database"] == database)
        found |= own & (blocks["tablespace"] == space)
    return found


def chosen_records(batch: Batch, whole: Column, bare: Column | None = None) -> ChosenRecords:
    """Return the records of two masks, in their order; those in both are whole."""
    rows = np.flatnonzero(whole if bare is None else whole | bare)
    records, is_whole = batch.records[rows].copy(), whole[rows]
    lengths = np.where(is_whole, records["length"], 0).astype(np.int64)
    begins = records["offset"].astype(np.int64)
    ends = np.cumsum(lengths + 7 & ~7)
    moved = begins - (ends - (lengths + 7 & ~7))
    payload = _gathered(batch.payload, begins, lengths, int(ends[-1]) if len(ends) else 0)
    for name in ("offset", "main_offset"):
        records[name] = (records[name].astype(np.int64) - moved) & 0xFFFFFFFF
    records["main_length"][~is_whole] = 0
    number = np.full(len(batch.records), -1, np.int64)
    number[rows[is_whole]] = np.flatnonzero(is_whole)
    blocks = batch.blocks[number[batch.blocks["record"]] >= 0].copy()
    own = number[blocks["record"]]
    blocks["record"] = own
    for name in ("data_offset", "image_offset"):
        blocks[name] = (blocks[name].astype(np.int64) - moved[own]) & 0xFFFFFFFF
    return ChosenRecords(
        batch.segment, batch.version, payload, records, blocks, np.empty(0, np.uint32),
        batch.start_lsn()[rows], batch.end_lsn()[rows], batch.timeline()[rows],
    )  # fmt: skip


def _gathered(payload: Bytes, begins: Column, lengths: Column, size: int) -> Bytes:
    """Return records side by side, each aligned to 8 as it was."""
    found: Bytes = np.zeros(size + SLACK_BYTES, np.uint8)
    places = np.cumsum(lengths + 7 & ~7) - (lengths + 7 & ~7)
    if size > SHORT_BYTES * len(begins):  # few and long: a copy each
        columns = (places.tolist(), begins.tolist(), lengths.tolist())
        for at, begin, length in zip(*columns, strict=True):
            found[at : at + length] = payload[begin : begin + length]
        return found
    within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    found[np.repeat(places, lengths) + within] = payload[np.repeat(begins, lengths) + within]
    return found
