"""An archive that safekeepers write meanwhile: its tail goes when a longer one is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.history.reading_whole import stats_of_segment
from tests.history.test_archives import MB, files_of, lay, made_stream, packed
from tests.support.s3_server import BUCKET, s3_server
from tests.support.wal_maker import WalMaker
from walkeeper_archive.cloud_store import CloudStore
from walkeeper_common.lsn import Lsn
from walkeeper_history.rows.stats import Stats
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import Plan, Problem, make_plan
from walkeeper_wal.sources.threaded_reading import sweep
from walkeeper_wal.sources.wal_files import LocalFiles, WalFiles
from walkeeper_wal.wal_errors import HistoryError


def tail(maker: WalMaker, end: int, *, pack: bool = False) -> tuple[str, bytes]:
    """Return the tail of the log up to `end` as safekeepers archive it."""
    last, begin = max(files_of(maker)), end // MB * MB
    data = maker.read(Lsn(begin), Lsn(end))
    name = f"{last}.{end:016X}.partial"
    return (f"{name}.zst", packed("zstd")(data)) if pack else (name, data)


def archived(maker: WalMaker, name: str, data: bytes) -> dict[str, bytes]:
    whole = files_of(maker)
    whole.pop(max(whole))
    return {**whole, name: data}


def read(files: WalFiles, plan: Plan) -> tuple[Stats, list[Problem]]:
    problems: list[Problem] = []
    total = Stats()
    for stats, _ in sweep(files, plan, stats_of_segment, on_problem=problems.append):
        total.add(stats)
    return total, problems


def half_written(maker: WalMaker) -> int:
    """Return how many of the records the listed tail has; its end is the last one's."""
    return next(n for n, r in enumerate(maker.records, 1) if r.end_lsn > maker.end_lsn - MB // 4)


@pytest.mark.parametrize("pack", [False, True], ids=["plain", "zstd"])
@pytest.mark.parametrize("becomes", ["a longer tail", "a whole segment"])
def test_a_tail_that_has_gone_is_read_from_what_took_its_place(
    tmp_path: Path, pack: bool, becomes: str
) -> None:
    """As far as it was listed, so that two passes over an archive see the same."""
    maker = made_stream()
    count = half_written(maker)
    name, data = tail(maker, int(maker.records[count - 1].end_lsn), pack=pack)
    lay(tmp_path, archived(maker, name, data))
    files = open_files(str(tmp_path))
    plan = make_plan(files)
    last = max(files_of(maker))
    longer = tail(maker, int(maker.end_lsn), pack=pack)
    lay(tmp_path, dict([longer]) if becomes == "a longer tail" else {last: files_of(maker)[last]})
    (tmp_path / name).unlink()
    stats, problems = read(files, plan)
    assert stats.totals()[0] == count and not problems
    stats, problems = read(files, make_plan(files))
    assert stats.totals()[0] == len(maker.records) and not problems


def test_a_tail_that_goes_between_the_listing_and_the_first_look_at_it_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = made_stream()
    count = half_written(maker)
    name, data = tail(maker, int(maker.records[count - 1].end_lsn))
    lay(tmp_path, archived(maker, name, data))
    lists = LocalFiles.list_files

    def list_and_lose(files: LocalFiles) -> list[tuple[str, int]]:
        listed = lists(files)
        if (tmp_path / name).exists():  # once: another thread may be reading what took its place
            lay(tmp_path, dict([tail(maker, int(maker.end_lsn))]))
            (tmp_path / name).unlink()
        return listed

    monkeypatch.setattr(LocalFiles, "list_files", list_and_lose)
    files = open_files(str(tmp_path))
    stats, problems = read(files, make_plan(files))
    assert stats.totals()[0] == count and not problems


def test_a_tail_in_an_object_store_may_go_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    maker = made_stream()
    count = half_written(maker)
    name, data = tail(maker, int(maker.records[count - 1].end_lsn), pack=True)
    with s3_server() as server:
        for variable, value in server.environment.items():
            monkeypatch.setenv(variable, value)
        store = CloudStore(f"s3://{BUCKET}/log")
        for path, content in archived(maker, name, data).items():
            store.put_new(path, content)
        files = open_files(f"s3://{BUCKET}/log")
        plan = make_plan(files)
        store.put_new(*tail(maker, int(maker.end_lsn), pack=True))
        store.delete(name)
        stats, problems = read(files, plan)
    assert stats.totals()[0] == count and not problems


def test_a_file_that_is_gone_for_good_is_named_once(tmp_path: Path) -> None:
    """A segment, or a tail that nothing follows: pruned, or another archive by now."""
    maker = made_stream()
    name, data = tail(maker, int(maker.end_lsn))
    lay(tmp_path, archived(maker, name, data))
    files = open_files(str(tmp_path))
    plan = make_plan(files)
    for gone in (plan.segments[-1].path, plan.segments[0].path):
        (tmp_path / gone).unlink()
        with pytest.raises(HistoryError) as error:
            for _ in sweep(files, plan, stats_of_segment):
                pass
        shown = str(error.value)
        assert shown.count(f"{tmp_path}/{gone}: ") == 1, shown
        assert "No such file or directory" in shown
