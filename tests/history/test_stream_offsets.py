"""Offsets of a stream belong to one cluster's log: LSNs of another one mean nothing there."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from pyspark.sql.streaming.datasource import ReadMaxFiles

from pyspark_pgwal.pgwal_options import PgWalOptions
from pyspark_pgwal.stream_reader import Offset, PgWalStreamReader
from tests.history.test_archives import MB, files_of, filled, lay
from tests.support.wal_maker import SYSTEM_ID, WalMaker
from walkeeper_common.lsn import Lsn
from walkeeper_wal.wal_errors import HistoryError

OTHER = 7_000_000_000_000_000_002


def reader(
    root: Path, end_lsn: str | None = None, *, system_id: int = SYSTEM_ID
) -> PgWalStreamReader:
    maker = filled(WalMaker(Random(3), segment_bytes=MB, system_id=system_id), 5 * MB // 2)
    lay(root, files_of(maker))
    options = {"path": str(root)} | ({} if end_lsn is None else {"endLsn": end_lsn})
    return PgWalStreamReader(PgWalOptions.parse(options))


def live(root: Path) -> PgWalStreamReader:
    """Return a reader that takes the folder for what safekeepers serve."""
    made = PgWalStreamReader(PgWalOptions.parse({"path": str(root)}))
    made._is_live = True
    return made


def starts(made: PgWalStreamReader) -> list[int]:
    """List where the records start that the stream gives until no more are new."""
    return starts_from(made, made.initialOffset())[0]


def starts_from(made: PgWalStreamReader, at: Offset) -> tuple[list[int], Offset]:
    """List the same from an offset on, and return the last offset."""
    found = list[int]()
    while (then := made.latestOffset(at, ReadMaxFiles(1))) != at:
        for part in made.partitions(at, then):
            for batch in made.read(part):
                found += batch["start_lsn"].to_pylist()
        at = then
    return found, at


def test_a_stream_with_an_end_has_the_segment_that_it_lies_in(tmp_path: Path) -> None:
    """With segments of 1 MB, the first two are complete; each end within them is reached."""
    whole = starts(reader(tmp_path / "whole"))
    assert len(whole) > 100
    for number, place in enumerate((len(whole) // 4, len(whole) // 2 - 1, len(whole) - 1)):
        end = whole[place]
        made = reader(tmp_path / str(number), str(Lsn(end)))
        assert starts(made) == [lsn for lsn in whole if lsn < end]


def test_a_live_stream_waits_for_the_rest_of_a_record_that_crosses_over(tmp_path: Path) -> None:
    """With one segment a trigger it went on to the segment's end, and the record was lost."""
    maker = WalMaker(Random(3), segment_bytes=MB)
    while maker.end_lsn < 2 * MB - 30_000:
        maker.record(9000)
    maker.record(80_000)
    filled(maker, 3 * MB // 2)
    files = files_of(maker)
    (name, first), (behind, second), *_ = files.items()
    made, found = live(lay(tmp_path, {name: first})), list[int]()
    at = made.initialOffset()
    for held in (100, 8192, 20_000, 2 * 8192 + 40_000, 200_000):
        for path in tmp_path.glob("*.partial"):
            path.unlink()
        (tmp_path / f"{behind}.{2 * MB + held:016X}.partial").write_bytes(second[:held])
        more, at = starts_from(made, at)
        found += more
    whole = [int(each.start_lsn) for each in maker.records if each.end_lsn <= 2 * MB + 200_000]
    assert found == whole


def test_a_checkpoint_of_another_cluster_is_refused(tmp_path: Path) -> None:
    """Its commits up to the old LSN were passed over without a word."""
    of_this, of_other = reader(tmp_path / "a"), reader(tmp_path / "b", system_id=OTHER)
    read = of_this.latestOffset(of_this.initialOffset(), ReadMaxFiles(64))
    text = f"b: what the checkpoint has read is of the system .*, this log of the system {OTHER}"
    with pytest.raises(HistoryError, match=text):
        of_other.latestOffset(read, ReadMaxFiles(64))
    with pytest.raises(HistoryError, match=text):
        of_other.partitions(of_this.initialOffset(), read)


def test_offsets_of_before_have_no_system_and_go_on(tmp_path: Path) -> None:
    made = reader(tmp_path)
    first = made.initialOffset()
    old: Offset = {name: value for name, value in first.items() if name != "system"}
    assert set(old) == {"timeline", "lsn"}
    then = made.latestOffset(old, ReadMaxFiles(64))
    assert then == made.latestOffset(first, ReadMaxFiles(64)) != first
    assert made.partitions(old, then)


def test_a_batch_that_comes_again_from_a_newer_timeline_is_refused(tmp_path: Path) -> None:
    """After a restart Spark asks for its batch alone, and got the other timeline's rows."""
    made = reader(tmp_path)
    first = made.initialOffset()
    then = made.latestOffset(first, ReadMaxFiles(64))
    assert made.partitions(first, then)
    newer = filled(WalMaker(Random(4), segment_bytes=MB, timeline=2), 5 * MB // 2)
    lay(tmp_path, files_of(newer))
    (tmp_path / "00000002.history").write_bytes(b"1\t0/180000\tno recovery target\n")
    for restarted in (made, PgWalStreamReader(PgWalOptions.parse({"path": str(tmp_path)}))):
        with pytest.raises(HistoryError, match="a newer timeline than 1 begins before 0/3"):
            restarted.partitions(first, then)


def test_an_offset_of_a_timeline_that_the_log_was_never_on_is_refused(tmp_path: Path) -> None:
    """With the option timeline the query went on in the other one, from where it was."""
    made = reader(tmp_path)
    first = made.initialOffset()
    then = {**made.latestOffset(first, ReadMaxFiles(64)), "timeline": 2}
    text = "was read on timeline 2, and the log up to timeline 1 was never on it"
    with pytest.raises(HistoryError, match=text):
        made.latestOffset(then, ReadMaxFiles(64))


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_hole_in_the_archive_is_no_end_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_damaged: bool
) -> None:
    """A query of what is there ended well without the WAL after it, and others waited for ever."""
    maker = filled(WalMaker(Random(3), segment_bytes=MB), 6 * MB)
    files = files_of(maker)
    hole, content = list(files.items())[2]
    lay(tmp_path, files | {hole: bytes(MB)})
    if not is_damaged:
        (tmp_path / hole).unlink()
    made, once = (PgWalStreamReader(PgWalOptions.parse({"path": str(tmp_path)})) for _ in "ab")
    once.prepareForTriggerAvailableNow()
    found = starts(made)
    assert found and max(found) < 2 * MB, "it waits for the segment"
    text = "000000010000000000000002: the segment after it is missing or damaged, and later WAL"
    with pytest.raises(HistoryError, match=text):
        starts(once)
    monkeypatch.setattr("pyspark_pgwal.stream_reader.LATER_MAX", 2)
    with pytest.raises(HistoryError, match=text):
        starts(made)
    (tmp_path / hole).write_bytes(content)
    again = PgWalStreamReader(PgWalOptions.parse({"path": str(tmp_path)}))
    again.prepareForTriggerAvailableNow()
    complete = int(maker.end_lsn) // MB * MB
    for reader_ in (made, again):
        assert starts(reader_) == [
            int(r.start_lsn) for r in maker.records if r.start_lsn < complete
        ]


def test_a_query_of_what_is_there_goes_on_behind_an_older_hole(tmp_path: Path) -> None:
    """An archive keeps the WAL of an old backup. The query ended well, and had no row."""
    maker = filled(WalMaker(Random(3), segment_bytes=MB), 6 * MB)
    names = list(lay(tmp_path, files_of(maker)).iterdir())
    made = PgWalStreamReader(PgWalOptions.parse({"path": str(tmp_path)}))
    at = made.initialOffset()
    for _ in range(3):
        at = made.latestOffset(at, ReadMaxFiles(1))
    sorted(names)[1].unlink()
    later = PgWalStreamReader(PgWalOptions.parse({"path": str(tmp_path)}))
    later.prepareForTriggerAvailableNow()
    found, end = starts_from(later, at)
    complete = int(maker.end_lsn) // MB * MB
    begin = int(Lsn.parse(at["lsn"]))
    assert found == [int(r.start_lsn) for r in maker.records if begin <= r.start_lsn < complete]
    assert found and end == later.reportLatestOffset()


def test_a_query_of_what_is_there_takes_nothing_that_came_later(tmp_path: Path) -> None:
    maker = filled(WalMaker(Random(3), segment_bytes=MB), 6 * MB)
    files = list(files_of(maker).items())
    lay(tmp_path, dict(files[:4]))
    made = PgWalStreamReader(PgWalOptions.parse({"path": str(tmp_path)}))
    made.prepareForTriggerAvailableNow()
    lay(tmp_path, dict(files[4:]))
    assert max(starts(made)) < 4 * MB < int(maker.end_lsn) - MB
