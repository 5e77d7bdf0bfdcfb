"""Compare redo with wal_consistency_checking's images, as PostgreSQL itself does on a standby.

    check = ConsistencyCheck(); check.run(files, plan)
    check.rows() -> (record type, compared and equal, different, of pages not known, not redone)

A server with wal_consistency_checking writes an image of the expected page after each change. The
image and the page that redo made are masked as bufmask.c and heap_mask() do (hint bits, command
ids, unused space). Then they must be the same bytes. A difference is repaired with the image, so
that it is counted once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from walkeeper_common.lsn import Lsn
from walkeeper_replay.redo.page import PAGE_BYTES
from walkeeper_replay.redo.redo_loops import loops
from walkeeper_replay.redo.store import PageStore
from walkeeper_wal.sources.reading import Batch

DIFFERENT = 1  # a column of the tally: equal, different, not known, not redone
DIFFERENCES_KEPT = 20


@dataclass(frozen=True, slots=True)
class Checked:
    """One kind of record, and how its images compared."""

    name: str
    equal: int
    different: int
    not_known: int
    not_redone: int


class ConsistencyCheck:
    """Redo of every heap relation, and the sums of the comparisons."""

    def __init__(self) -> None:
        self.store = PageStore(takes_all=True)
        self._tally = np.zeros((256 * 16, 4), np.int64)
        self._different = np.zeros((DIFFERENCES_KEPT, 5), np.int64)
        self._masked = np.empty((2, PAGE_BYTES), np.uint8)
        self._names: tuple[str, ...] = ()
        self.shown: list[str] = []

    def add(self, batch: Batch) -> None:
        """Redo and compare; batches come in the order of the log."""
        store, version = self.store, batch.version
        self._names = version.record_names()
        for event_batch in store.stretches(batch):
            chosen, at = event_batch, 0
            while at < len(chosen):
                at = loops.check(
                    batch.payload, batch.records, batch.blocks, batch.end_lsn(), chosen, at,
                    store.images, version.image_apply_flag, version.layout, store.pages,
                    store.slots, store.hash_keys, store.hash_slots, store.counts, store.scratch,
                    self._masked, self._tally, self._different,
                )  # fmt: skip
                if at < len(chosen):
                    store.grow()
        self._show(batch)

    def _show(self, batch: Batch) -> None:
        """Keep differences of this batch as text, while its block references are there."""
        total = min(int(self._tally[:, DIFFERENT].sum()), DIFFERENCES_KEPT)
        for lsn, kind, place, row, number in self._different[len(self.shown) : total].tolist():
            relation = batch.blocks[row]
            names = ("tablespace", "database", "relfilenode")
            shown = "/".join(str(int(relation[name])) for name in names)
            self.shown.append(
                f"after {Lsn(lsn)} ({self._names[kind]}): block {number} of {shown} differs "
                f"from byte {place} on"
            )

    def rows(self) -> Iterator[Checked]:
        for kind in np.flatnonzero(self._tally.any(axis=1)).tolist():
            yield Checked(self._names[kind], *self._tally[kind].tolist())
