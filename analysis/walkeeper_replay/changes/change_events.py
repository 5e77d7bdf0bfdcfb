"""The files of a table, and which of the events of one are changes of rows. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from walkeeper_replay.redo.apply import DELETED, INSERTED, NEW, OLD, UNDONE
from walkeeper_replay.redo.store import PageStore, Relation
from walkeeper_wal.records.segment import Column


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file that a table had from one commit up to another."""

    relation: Relation
    begin: int
    end: int
    oid: int
    toast: Relation | None
    follows: bool
    """Another file of the same table came before, so that it began with a TRUNCATE."""


def where(mask: Column, rows: Column, lsns: Column) -> tuple[Column, Column]:
    """Return what a mask names of two columns: themselves if it names all, which is usual."""
    return (rows, lsns) if mask.all() else (rows[mask], lsns[mask])


def taken_back(rows: Column) -> Column:
    """Mark insertions that their own transaction deleted as though they had never been. These are
    of an INSERT … ON CONFLICT that another transaction came before."""
    found = np.zeros(len(rows), bool)
    for undone in rows[rows["kind"] == UNDONE]:
        same = (rows["kind"] == INSERTED) & (rows["start_lsn"] < undone["start_lsn"])
        for name in ("block", "number", "xid"):
            same &= rows[name] == undone[name]
        found[np.flatnonzero(same)[-1:]] = True
    return found


def versions(rows: Column) -> tuple[Column, Column, Column]:
    """Join an update's two versions, which have the same record, to one change.

    Return each change's event, and the places of its old and its new row, or -1.
    """
    olds = np.flatnonzero(rows["kind"] == OLD)
    olds = olds[np.argsort(rows["start_lsn"][olds], kind="stable")]
    shown = np.flatnonzero(rows["kind"] != OLD)
    kinds, own = rows["kind"][shown], rows["start_lsn"][shown]
    # The place of an old version: that of the deleted row itself, or of its update's other.
    starts = np.append(rows["start_lsn"][olds], -1)
    behind = np.searchsorted(starts[:-1], own, "right") - 1
    is_pair = (kinds == NEW) & (starts[behind] == own)
    before = np.where(is_pair, np.append(olds, -1)[behind], -1)
    is_gone = kinds == DELETED
    return shown, np.where(is_gone, shown, before), np.where(is_gone, -1, shown)


def emptied(store: PageStore, file: TableFile) -> int:
    """Return the last time that the transaction which made a file emptied it, or 0. A second
    TRUNCATE is in place, and so is one of a table that the transaction has created. Later ones are
    VACUUM's, and take no row."""
    return max(_made_empty(store, file), default=0)


def is_emptied_again(store: PageStore, file: TableFile) -> bool:
    """Return whether the transaction that made a file, perhaps as a copy, truncated it later."""
    return len(_made_empty(store, file)) > 1


def _made_empty(store: PageStore, file: TableFile) -> list[int]:
    return [lsn for lsn in store.emptied.get(file.relation, ()) if lsn < file.begin]
