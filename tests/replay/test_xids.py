"""Lookups of transactions see those that ended since the lookup before, also in a copy."""

from __future__ import annotations

import pickle

import numpy as np

from walkeeper_history.rows.ended import ROLLED_BACK, Ended
from walkeeper_replay.redo.apply import EVENT_ROW, SEEN
from walkeeper_replay.redo.page import INFOMASK, XMAX, XMIN
from walkeeper_replay.redo.store import Events
from walkeeper_replay.tuples.row_versions import (
    XMAX_INVALID,
    XMIN_FROZEN,
    takers_are_assumed,
    takers_commit,
    versions_of,
)
from walkeeper_replay.tuples.xids import ASSUMED, BEFORE, NEVER, NOT_KNOWN, Xids

HEADER_BYTES = 24
MULTI = 0x1000


class Backup:
    """A backup that has no pg_xact, and the members of multixact 7 alone."""

    def is_committed(self, xid: int) -> bool | None:
        return None

    def updater(self, multixact: int) -> int | None:
        return 0 if multixact == 7 else None


def ended(pairs: list[tuple[int, int]]) -> Ended:
    xids, lsns = (np.array(column, np.int64) for column in zip(*pairs, strict=True))
    return Ended(xids, xids, lsns, np.zeros(len(xids), np.int64))


def test_a_lookup_sees_what_ended_since_the_last_one() -> None:
    xids = Xids()
    asked = np.array([0, 2, 700, 65535, 65536, (1 << 32) - 1, 700], np.uint32)
    xids.take(ended([(700, 5000), (65536, ROLLED_BACK)]))
    first = [NEVER, BEFORE, 5000, ASSUMED, NEVER, ASSUMED, 5000]
    assert xids.commit_lsns(asked).tolist() == first
    xids.take(ended([(65535, 6000), ((1 << 32) - 1, 7000)]))
    second = [NEVER, BEFORE, 5000, 6000, NEVER, 7000, 5000]
    assert xids.commit_lsns(asked).tolist() == second
    copy = pickle.loads(pickle.dumps(xids))
    assert "_lookup" not in vars(copy)
    assert copy.commit_lsns(asked).tolist() == second


def test_an_updater_that_is_not_known_counts_as_assumed() -> None:
    """The old version was shown beside the new one, and nothing said that it may be gone."""
    for xids, known in ((Xids(), False), (Xids(Backup()), True)):
        xids.take(ended([(700, 5000)]))
        assert xids.updater(8) == NOT_KNOWN
        assert xids.updater(7) == (0 if known else NOT_KNOWN)
        xmax, mask = np.array([7, 8, 700]), np.array([MULTI, MULTI, 0])
        seventh = (NEVER, False) if known else (0, True)
        assert takers_commit(xmax, mask, xids).tolist() == [seventh[0], 0, 5000]
        assert takers_are_assumed(xmax, mask, xids).tolist() == [seventh[1], True, False]


def seen(*, xmin: int, mask: int, at: int) -> Events:
    """Return the event of a row that a page had in the record at an LSN, or in the backup at 0."""
    header = bytearray(HEADER_BYTES)
    for place, size, value in ((XMIN, 4, xmin), (XMAX, 4, 0), (INFOMASK, 2, mask)):
        header[place : place + size] = value.to_bytes(size, "little")
    row = (at, at, 0, 0, 0, 1, SEEN, 0, HEADER_BYTES)
    return Events(np.array([row], EVENT_ROW), np.frombuffer(bytes(header), np.uint8))


def test_a_frozen_row_is_older_than_a_later_transaction_of_its_number() -> None:
    """2**32 transactions later its maker's xid commits again, and the row began only there."""
    xids = Xids()
    xids.take(ended([(700, 5000)]))
    frozen, made = XMIN_FROZEN | XMAX_INVALID, XMAX_INVALID
    begins = [
        int(versions_of([seen(xmin=700, mask=mask, at=at)], xids).begin[0])
        for mask, at in ((frozen, 0), (frozen, 4000), (frozen, 6000), (made, 0))
    ]
    assert begins == [0, 0, 5000, 5000]
