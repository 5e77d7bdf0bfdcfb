"""The files of a table, and the events of a file that are changes of rows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from walkeeper_replay.catalogs.catalog_history import Named
from walkeeper_replay.redo.apply import DELETED, INSERTED, NEW, OLD, UNDONE
from walkeeper_replay.redo.store import PageStore, Relation
from walkeeper_replay.tuples.xids import NEVER
from walkeeper_wal.records.segment import Column


class Tenure(NamedTuple):
    """The commits in (after, until] whose changes in a file are one table's."""

    after: int = -1
    until: int = NEVER
    is_taken_over: bool = False
    """The table took the file over from another one, with the rows in it."""


ALWAYS = Tenure()


def tenures(
    owned: Sequence[Named], is_created_in: Callable[[int, int], bool]
) -> list[tuple[Named, Tenure]]:
    """Return the owners of a file, in their order, each with its table's tenure of it.

    When OIDs have begun again, a new file gets the number of a dropped one, and perhaps a new table
    its OID. An extension such as pg_repack exchanges the files of two tables.
    """
    groups: list[list[Named]] = []
    for named in owned:
        last = groups[-1][-1] if groups else None
        is_other = last is None or last.oid != named.oid
        is_new = last is not None and named.begin > last.end
        if is_other or (is_new and is_created_in(named.oid, named.begin)):
            groups.append([named])
        else:
            groups[-1].append(named)
    found, after, is_taken_over = [], ALWAYS.after, False
    for group, following in zip_longest(groups, groups[1:]):
        ended = max(named.end for named in group)
        until = ALWAYS.until if following is None else min(ended, following[0].begin)
        found += [(named, Tenure(after, until, is_taken_over)) for named in group]
        after, is_taken_over = until, following is not None and following[0].begin <= ended
    return found


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file that a table had from one commit up to another."""

    relation: Relation
    begin: int
    end: int
    oid: int
    toasts: tuple[Relation, ...]
    """The files of its TOAST table in turn: VACUUM FULL of that table alone makes another one."""
    follows: bool
    """Another file of the same table came before, so that it began with a TRUNCATE."""
    tenure: Tenure = ALWAYS


def where(mask: Column, rows: Column, lsns: Column) -> tuple[Column, Column]:
    """Return the parts of two columns that a mask names, or the columns if it names all of them."""
    return (rows, lsns) if mask.all() else (rows[mask], lsns[mask])


def taken_back(rows: Column) -> Column:
    """Return a mask of the insertions that their own transaction took back.

    An INSERT … ON CONFLICT does so if another transaction has inserted a conflicting row first.
    """
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
    # The old version is the deleted row itself, or the OLD event of the update's record.
    starts = np.append(rows["start_lsn"][olds], -1)
    behind = np.searchsorted(starts[:-1], own, "right") - 1
    is_pair = (kinds == NEW) & (starts[behind] == own)
    before = np.where(is_pair, np.append(olds, -1)[behind], -1)
    is_gone = kinds == DELETED
    return shown, np.where(is_gone, shown, before), np.where(is_gone, -1, shown)


def emptied(store: PageStore, file: TableFile) -> int:
    """Return the last LSN at which the transaction that made a file emptied it, or 0.

    A second TRUNCATE is in place, and so is one of a table that the transaction has created. Later
    truncations are VACUUM's, and remove no row.
    """
    return max(_made_empty(store, file), default=0)


def is_emptied_again(store: PageStore, file: TableFile) -> bool:
    """Return True if the transaction that made a file, perhaps as a copy, truncated it later."""
    return len(_made_empty(store, file)) > 1


def _made_empty(store: PageStore, file: TableFile) -> list[int]:
    emptied_at = store.emptied.get(file.relation, ())
    return [lsn for lsn in emptied_at if file.tenure.after <= lsn < file.begin]
