"""Changes of open transactions without a server: parts, deaths, a full disk, and what stays."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from walkeeper_history.rows.ended import Ended
from walkeeper_replay.catalogs.catalog import Table
from walkeeper_replay.changes.change_rows import CHANGE_ROW, FoundChanges, Piece, covered
from walkeeper_replay.redo.apply import EVENT_ROW, INSERTED, UNDONE
from walkeeper_replay.redo.page_file import PageFile
from walkeeper_replay.redo.store import Events, Relation
from walkeeper_replay.streams.open_changes import OpenChanges
from walkeeper_replay.streams.spooled_changes import SpooledChanges
from walkeeper_replay.text.coverage import COMPLETE
from walkeeper_replay.tuples.xids import Xids
from walkeeper_wal.wal_errors import HistoryError

BYTES_MAX = 3 * (EVENT_ROW.itemsize + 8)
"""Memory for three events of `events`."""


def events(*rows: tuple[int, int], kind: int = INSERTED) -> Events:
    """Return insertions by (LSN, xid), with tuples that name their LSN."""
    made = np.zeros(len(rows), EVENT_ROW)
    made["start_lsn"], made["xid"] = zip(*rows, strict=True)
    made["kind"], made["length"], made["place"] = kind, 8, 8 * np.arange(len(rows))
    return Events(made, made["start_lsn"].copy().view(np.uint8))


def ended(xids: Xids, *commits: tuple[int, int, int]) -> None:
    """Note commits (xid, LSN, top xid); an LSN of -1 is a rollback."""
    columns = (np.array(column, np.int64) for column in zip(*commits, strict=True))
    xid, lsn, top = columns
    xids.take(Ended(xid, lsn, lsn, top))


def lsns(found: Events) -> list[int]:
    """Return the LSNs in the tuples of all events with a tuple."""
    rows = found.rows[found.rows["length"] > 0]
    return [int(found.arena[at : at + 8].view(np.int64)[0]) for at in rows["place"].tolist()]


def parts(waiting: OpenChanges, own: Events, xids: Xids, end: int) -> list[tuple[int, list[int]]]:
    found = waiting.parts(waiting.joined_with([own]), xids.commits, 0, end, [])
    return [(part.end_lsn, lsns(part.events)) for part in found]


def opened(file: PageFile) -> OpenChanges:
    waiting = OpenChanges()
    waiting.attach(file, BYTES_MAX)
    return waiting


def test_commits_come_in_their_order_and_a_large_one_in_parts(tmp_path: Path) -> None:
    xids = Xids(keeps_commits=True)
    with closing(PageFile(tmp_path / "state")) as file:
        waiting = opened(file)
        for window in range(5):
            first = 100 * window
            own = events(*((first + at, 7) for at in range(1, 5)), (first + 9, 8))
            waiting.keep(own, xids, 0)
            assert waiting.bytes_in_memory <= BYTES_MAX
        assert waiting.pieces == 5
        ended(xids, (8, 900, 8), (7, 950, 7))
        found = parts(waiting, events((880, 7)), xids, 1000)
        assert [end for end, _ in found] == sorted(end for end, _ in found)
        assert [lsn for _, own in found[:2] for lsn in own] == [9, 109, 209, 309, 409]
        assert len(found) > 4 and max(len(own) for _, own in found) <= 8
        large = [lsn for _, own in found[2:] for lsn in own]
        assert large == sorted(large) and len(large) == 21
        waiting.keep(events((990, 9)), xids, 0)
        assert waiting.pieces == 0 and lsns(waiting.near) == [990]


def test_what_was_rolled_back_leaves_nothing_and_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    xids = Xids(keeps_commits=True)
    with closing(PageFile(tmp_path / "state")) as file:
        waiting = opened(file)
        waiting.keep(events(*((at, 7) for at in range(1, 9))), xids, 0)
        assert waiting.pieces == 1
        ended(xids, (7, -1, 7))
        monkeypatch.setattr(PageFile, "piece", None)
        assert parts(waiting, events((20, 9)), xids, 50) == [(50, [20])]
        waiting.keep(events((20, 9)), xids, 0)
        assert waiting.pieces == 0
        assert list(file._sql.execute("SELECT * FROM piece")) == []


def test_a_crash_ended_the_transactions_before_the_oldest_active_one(tmp_path: Path) -> None:
    xids = Xids(keeps_commits=True)
    with closing(PageFile(tmp_path / "state")) as file:
        waiting = opened(file)
        waiting.keep(events(*((at, 7) for at in range(1, 9))), xids, 0)
        waiting.keep(events((20, 7), (21, 9)), xids, 9)
        assert waiting.pieces == 0 and lsns(waiting.near) == [21]


def test_a_death_leaves_the_pieces_of_the_last_save(tmp_path: Path) -> None:
    xids, path = Xids(keeps_commits=True), tmp_path / "state"
    with closing(PageFile(path)) as file:
        waiting = opened(file)
        waiting.keep(events(*((at, 7) for at in range(1, 9))), xids, 0)
        file.save(b"first")
        waiting.keep(events(*((at, 7) for at in range(11, 19))), xids, 0)
        ended(xids, (7, -1, 7))
        waiting.keep(events((20, 9)), xids, 0)
    with closing(PageFile(path)) as file:
        assert [serial for (serial,) in file._sql.execute("SELECT serial FROM piece")] == [1]
        assert file.piece(1)


def test_an_insertion_learns_in_its_part_that_it_was_taken_back(tmp_path: Path) -> None:
    xids = Xids(keeps_commits=True)
    with closing(PageFile(tmp_path / "state")) as file:
        waiting = opened(file)
        waiting.keep(events(*((at, 7) for at in range(1, 9))), xids, 0)
        waiting.keep(events(*((at, 7) for at in range(11, 19)), kind=UNDONE), xids, 0)
        ended(xids, (7, 100, 7))
        found = [*waiting.parts(events((90, 7)), xids.commits, 0, 100, [])]
        assert len(found) == 3
        assert [int((part.events.rows["kind"] == UNDONE).sum()) for part in found] == [8, 8, 8]


def test_a_damaged_piece_is_refused(tmp_path: Path) -> None:
    with closing(PageFile(tmp_path / "state")) as file:
        waiting = opened(file)
        waiting.keep(events(*((at, 7) for at in range(1, 9))), Xids(), 0)
        file._sql.execute("UPDATE piece SET data = zeroblob(length(data))")
        with pytest.raises(HistoryError, match="damaged"):
            file.piece(1)


def test_a_full_disk_is_an_error_with_its_remedy(tmp_path: Path) -> None:
    with closing(PageFile(tmp_path / "state")) as file:
        file._sql.execute("PRAGMA max_page_count = 5")
        waiting = opened(file)
        many = events(*((at, 7) for at in range(1, 20_000)))
        with pytest.raises(HistoryError, match=r"state: database or disk is full: make room there"):
            waiting.keep(many, Xids(), 0)


def changes(*commits: int) -> FoundChanges:
    rows = np.zeros(len(commits), CHANGE_ROW)
    rows["commit_lsn"], rows["old"], rows["new"] = commits, -1, -1
    table = Table(1, "public", "t", Relation(0, 0, 0), (), None, ())
    return FoundChanges([Piece(table, rows, None, covered(len(rows), COMPLETE))])


def commits_of(spooled: SpooledChanges) -> Sequence[int]:
    found: list[int] = spooled.reader().read_all()["commit_lsn"].to_pylist()
    return found


def test_one_part_stays_in_memory_and_several_leave_no_file(tmp_path: Path) -> None:
    with SpooledChanges(tmp_path, after=4) as spooled:
        spooled.take(changes(3, 5, 6), "postgres")
        assert len(spooled) == 2 and not spooled.is_on_disk and commits_of(spooled) == [5, 6]
    with SpooledChanges(tmp_path, after=4) as spooled:
        for part in (changes(5), changes(4), changes(7, 8)):
            spooled.take(part, "postgres")
        assert len(spooled) == 3 and spooled.is_on_disk and commits_of(spooled) == [5, 7, 8]
        assert not list(tmp_path.iterdir()), "a death leaves nothing"


def test_a_full_disk_for_a_window_is_an_error_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with SpooledChanges(tmp_path) as spooled:
        spooled.take(changes(5), "postgres")
        with pytest.raises(HistoryError, match=r"No space left on device: make room"):
            spooled.take(changes(6), "postgres")
