"""HeapFiles in little memory: two for each file of the transactions that have ended.

    files.add_files(batch); files.note(heap_changes(batch)); files.settle(ended_of(batch))
    files.commits()                          the ends of the transactions that `touched` names

Contract: `touched` names the transaction that committed last with changes of a file. It names
another one if there is one of another top-level transaction. It also names those that dropped
files. So it tells whether a file was changed after an LSN, and whether by one transaction alone.
"""

from __future__ import annotations

import numpy as np

from walkeeper_history.rows.ended import Ended
from walkeeper_replay.redo.heap_files import HeapFiles
from walkeeper_replay.redo.store import Relation


class FewHeapFiles(HeapFiles):
    """See the module. `changed` has each file, `touched` also those of open transactions."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[Relation, Ended] = {}
        self._dropping: list[Ended] = []
        self._droppers: set[int] = set()  # the transactions of this batch that dropped files

    @property
    def changed(self) -> list[Relation]:
        return [*{**self._kept, **self._changed}]

    def touched(self) -> dict[Relation, set[int]]:
        """Return transactions that changed rows of each file, or dropped it with all rows."""
        found = super().touched()
        for relation, ended in self._kept.items():
            found.setdefault(relation, set()).update(ended.xids.tolist())
        return found

    def drop(self, relations: list[Relation], top: int) -> None:
        """Note the files that a transaction dropped."""
        super().drop(relations, top)
        if relations:
            self._droppers.add(top)

    def settle(self, ended: Ended) -> None:
        """Take the ends of a batch, after its files and its changes."""
        ended = ended.chosen(np.argsort(ended.xids, kind="stable"))
        if self._droppers:
            self._dropping.append(ended.chosen(np.isin(ended.xids, list(self._droppers))))
            self._droppers.clear()
        for relation, pieces in list(self._changed.items()):
            xids = np.unique(np.concatenate(pieces))
            rows = np.searchsorted(ended.xids, xids)
            rows[rows == len(ended.xids)] = 0
            has_ended = ended.xids[rows] == xids if len(ended.xids) else np.zeros(len(xids), bool)
            self._keep(relation, ended.chosen(rows[has_ended]).committed)
            if has_ended.all():
                del self._changed[relation]
            else:
                self._changed[relation] = [xids[~has_ended]]

    def commits(self) -> list[Ended]:
        """Return the ends of the committed transactions that `touched` names."""
        return [*self._kept.values(), *self._dropping]

    def _keep(self, relation: Relation, more: Ended) -> None:
        """Keep the last of the commits, and one of another top-level transaction."""
        known = self._kept.get(relation)
        every = more if known is None else known.joined(more)
        if len(every.xids):
            last = int(every.end_lsns.argmax())
            others = np.flatnonzero(every.tops != every.tops[last])
            every = every.chosen(np.array([last, *others[:1]]))
        self._kept[relation] = every
