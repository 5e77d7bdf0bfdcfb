"""WAL that the archive lacks between older WAL and a member's: it is reported when it is sure."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.archive.test_offload import MB, FakeLog, archive, hurry, wal_with
from walkeeper_archive.archive import Archive
from walkeeper_common.lsn import Lsn
from walkeeper_safekeeper.archiving import archive_survey
from walkeeper_safekeeper.archiving.offload import Offload

__all__ = ["archive", "hurry"]


def after_surveys() -> Callable[[Offload], bool]:
    """Return a condition that is true after two surveys: a gap is sure by then."""
    asked = iter(range(1 << 30))
    return lambda _: next(asked) > 20


def test_wal_that_left_the_disks_before_it_was_archived_is_a_gap_until_somebody_has_it(
    archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a newcomer that joined while the archive was not there."""
    monkeypatch.setattr(archive_survey, "SURVEY_TICKS", 2)
    maker = wal_with(*[300_000] * 24)
    end, gap = maker.end_lsn.round_down(MB), (Lsn(3 * MB), Lsn(5 * MB))
    newcomer, place = FakeLog(maker), tmp_path / "archive"
    newcomer.driver.store.remove_below(Lsn(5 * MB))
    FakeLog(wal_with(*[300_000] * 8)).run(archive, gap[0])
    place.rename(tmp_path / "elsewhere")
    assert newcomer.run(archive, Lsn(0), has=after_surveys()).gap is None, "nothing is known"
    (tmp_path / "elsewhere").rename(place)
    assert newcomer.run(archive, end, gap=gap).gap == gap and newcomer.reaches == gap[1]
    assert FakeLog(maker).run(archive, end).archived_lsn == end
    assert newcomer.run(archive, end).gap is None and newcomer.reaches == MB


@pytest.mark.parametrize("closed_by", ["a member that archives it", "pruning what is older"])
def test_a_gap_that_was_sure_is_looked_at_until_it_is_closed(
    archive: Archive, monkeypatch: pytest.MonkeyPatch, closed_by: str
) -> None:
    prunes = closed_by.startswith("pruning")
    monkeypatch.setattr(archive_survey, "SURVEY_TICKS", 2)
    monkeypatch.setattr(archive_survey, "GAP_LOOKS", 3 if prunes else 1 << 30)
    maker = wal_with(*[300_000] * 24)
    end, gap = maker.end_lsn.round_down(MB), (Lsn(3 * MB), Lsn(5 * MB))
    reaches = gap[1] if prunes else MB
    newcomer, closing = FakeLog(maker), list[threading.Thread]()
    newcomer.driver.store.remove_below(gap[1])
    FakeLog(wal_with(*[300_000] * 8)).run(archive, gap[0])

    def close() -> None:
        if not prunes:
            FakeLog(maker).run(archive, end)
        for found in [*archive.objects()] if prunes else []:
            if found.file.begin_lsn(MB) < gap[0]:
                archive.delete(found)

    def is_closed(made: Offload) -> bool:
        if made.gap == gap and not closing:
            closing.append(threading.Thread(target=close))
            closing[0].start()
        # Half closed it is not sure again, and so None as well.
        return bool(closing) and made.gap is None and newcomer.reaches == reaches

    newcomer.run(archive, end, has=is_closed)
    closing[0].join()
    assert newcomer.reaches == reaches


def test_an_archive_that_was_begun_later_or_pruned_has_no_gap(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_survey, "SURVEY_TICKS", 2)
    maker = wal_with(*[300_000] * 24)
    for first in (4, 3):
        log = FakeLog(maker)
        log.driver.store.remove_below(Lsn(first * MB))
        log.run(archive, maker.end_lsn.round_down(MB))
        assert log.run(archive, Lsn(0), has=after_surveys()).gap is None
        assert log.reaches == first * MB


@pytest.mark.parametrize("first", [4, 5])
def test_segments_of_an_older_log_are_not_missing_in_a_log_that_was_made_anew(
    archive: Archive, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    monkeypatch.setattr(archive_survey, "SURVEY_TICKS", 2)
    older = wal_with(*[300_000] * 12)
    assert FakeLog(older).run(archive, Lsn(4 * MB)).archived_lsn == 4 * MB
    log = FakeLog(wal_with(*[300_000] * 24))
    log.driver.store.remove_below(Lsn(first * MB))
    log.configuration = replace(log.configuration, creation_lsn=Lsn(first * MB))
    assert log.run(archive, Lsn(0), has=after_surveys()).gap is None
