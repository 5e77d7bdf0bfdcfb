"""`walkeeper archive ls | verify | prune` find what is wrong, and let nothing go that is needed."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tarfile
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from walkeeper_archive.archive import Archive, open_archive
from walkeeper_archive.layout import (
    ArchivedObject,
    Kind,
    Packing,
    WalFile,
    history_file,
    partial_file,
    segment_file,
)
from walkeeper_archive.verification import survey, verify
from walkeeper_cli.program import run
from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.walpages import LONG_HEADER, LONG_HEADER_REST, PAGE_HEADER
from walkeeper_common.timelines import checked_timeline_file

MB = 1 << 20
SYSTEM_ID = 7000000000000000001


def wal_of(begin_lsn: Lsn, timeline: int = 1, system_id: int = SYSTEM_ID, size: int = MB) -> bytes:
    """Return a segment with a real header and with bytes of its own."""
    front = PAGE_HEADER.pack(0xD110, LONG_HEADER, timeline, begin_lsn, 0, 0)
    front += LONG_HEADER_REST.pack(system_id, MB, 8192)
    return (front + str(begin_lsn).encode() * 1000).ljust(size, b"\0")[:size]


def put_segment(archive: Archive, number: int, timeline: int = 1, **other: int) -> WalFile:
    file = segment_file(timeline, Lsn(number * MB), MB)
    packing = Packing.ZSTD if number % 2 else Packing.PLAIN
    archive.put(file, wal_of(Lsn(number * MB), timeline, **other), packing)
    return file


@dataclass
class Made:
    """Timeline 1 from segment 3 to 9, of which 7.5 is the fork of timeline 2, which goes to 12."""

    archive: Archive
    url: str

    def path(self, file: WalFile) -> Path:
        base = Path(self.archive.url.removeprefix("file://"))
        plain = base / file.path
        return plain if plain.exists() else base / (file.path + ".zst")

    def receipt(self, file: WalFile) -> Path:
        return Path(self.archive.url.removeprefix("file://")) / file.receipt_path

    def remove(self, file: WalFile) -> None:
        self.path(file).unlink()
        self.receipt(file).unlink()

    def problems(self) -> list[str]:
        return [problem.text for problem in verify(self.archive, survey(self.archive))]

    def segments(self) -> list[str]:
        objects = self.archive.objects()
        return [o.file.name for o in objects if o.is_receipt and o.file.kind is Kind.SEGMENT]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    (tmp_path / "archive").mkdir()
    url = f"file://{tmp_path}/archive"
    archive = open_archive(url, "main", SYSTEM_ID)
    for number in range(3, 10):
        put_segment(archive, number)
    archive.put(history_file(2), b"1\t0/780000\tno recovery target specified\n\n")
    for number in range(7, 12):
        put_segment(archive, number, timeline=2)
    archive.put(partial_file(2, Lsn(12 * MB + 8192), MB), wal_of(Lsn(12 * MB), 2, size=8192))
    return Made(archive, url)


def segment(number: int, timeline: int = 1) -> WalFile:
    return segment_file(timeline, Lsn(number * MB), MB)


def test_an_archive_without_faults_has_no_problems(
    made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    assert made.problems() == []
    assert run(["archive", "verify", made.url]) == 0
    done = capsys.readouterr()
    assert done.out == "" and "14 of 14 files" in done.err


@pytest.mark.parametrize("number", [4, 5], ids=["plain", "zstd"])
@pytest.mark.parametrize("at", [0, 12, 40, -1])
def test_a_flipped_byte_is_found(
    made: Made, number: int, at: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path = made.path(segment(number))
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)
    assert len(made.problems()) == 1 and segment(number).name in made.problems()[0]
    assert run(["archive", "verify", made.url, "-q"]) == 1
    assert "1 problem in" in capsys.readouterr().err


def test_a_missing_segment_is_found_and_named(made: Made) -> None:
    made.remove(segment(5))
    assert made.problems() == ["segment 000000010000000000000005 is missing (0/500000 to 0/600000)"]
    made.remove(segment(6))
    assert made.problems() == [
        "2 segments from 000000010000000000000005 to 000000010000000000000006 are missing "
        "(0/500000 to 0/700000)"
    ]


def test_a_missing_history_is_found(made: Made) -> None:
    made.remove(history_file(2))
    (problem,) = made.problems()
    assert problem.startswith("00000002.history is missing")


def test_a_gap_between_timelines_is_found_on_either_side(made: Made) -> None:
    made.remove(segment(7, timeline=2))
    assert made.problems() == [
        "gap between timelines 1 and 2: segment 000000020000000000000007 is missing "
        "(0/700000 to 0/800000)"
    ]


def test_a_parent_that_ends_before_the_fork_is_a_gap(made: Made) -> None:
    for number in range(6, 10):
        made.remove(segment(number))
    assert made.problems() == [
        "gap between timelines 1 and 2: segment 000000010000000000000006 is missing "
        "(0/600000 to 0/700000)"
    ]


def test_a_tail_after_a_missing_segment_is_a_gap(made: Made) -> None:
    made.remove(segment(11, timeline=2))
    assert made.problems() == ["segment 00000002000000000000000B is missing (0/B00000 to 0/C00000)"]


def test_a_timeline_that_has_a_tail_alone_must_begin_at_its_fork(made: Made) -> None:
    history = b"1\t0/780000\tno\n\n2\t0/C80000\tno recovery target specified\n\n"
    made.archive.put(history_file(3), history)
    part = partial_file(3, Lsn(14 * MB + 8192), MB)
    made.archive.put(part, wal_of(Lsn(14 * MB), 3, size=8192))
    assert made.problems() == [
        "gap between timelines 2 and 3: 2 segments from 00000003000000000000000C to "
        "00000003000000000000000D are missing (0/C00000 to 0/E00000)"
    ]


def test_a_gap_is_found_after_a_timeline_that_ended_where_it_began(made: Made) -> None:
    """Timeline 3 is left in the segment in which it began; 4 goes on, and 2 must be there."""
    forks = b"1\t0/780000\tno\n\n2\t0/C80000\tno\n\n"
    made.archive.put(history_file(3), forks)
    made.archive.put(history_file(4), forks + b"3\t0/C90000\tno recovery target specified\n\n")
    put_segment(made.archive, 12, timeline=4)
    assert made.problems() == []
    made.remove(segment(11, timeline=2))
    made.remove(partial_file(2, Lsn(12 * MB + 8192), MB))
    assert made.problems() == [
        "gap between timelines 2 and 3: segment 00000002000000000000000B is missing "
        "(0/B00000 to 0/C00000)"
    ]


def test_wal_pruned_at_the_front_is_no_gap(made: Made) -> None:
    for number in range(3, 10):
        made.remove(segment(number))
    made.remove(segment(7, timeline=2))
    assert made.problems() == []


def test_a_file_that_is_removed_during_the_comparison_is_no_problem(made: Made) -> None:
    contents = survey(made.archive)
    tail = partial_file(2, Lsn(12 * MB + 8192), MB)
    for file in (segment(3), tail):
        made.receipt(file).unlink()
        assert made.path(file).exists(), "half of a removal"
    assert [problem.text for problem in verify(made.archive, contents)] == []


def test_an_object_that_is_gone_is_found_and_a_lost_receipt_is_a_missing_segment(
    made: Made,
) -> None:
    made.path(segment(5)).unlink()
    assert any("05 is gone; its receipt is there" in text for text in made.problems())
    made.receipt(segment(5)).unlink()
    made.receipt(segment(6)).unlink()
    assert len(made.problems()) == 1 and "2 segments" in made.problems()[0]


def test_wal_under_a_wrong_name_or_of_another_system_is_found(made: Made) -> None:
    put_segment(made.archive, 10, system_id=5)
    made.archive.put(segment(11), wal_of(Lsn(3 * MB)))
    made.archive.put(segment(12), wal_of(Lsn(12 * MB), timeline=2))
    made.archive.put(segment(13), wal_of(Lsn(13 * MB), size=2 * MB))
    found = made.problems()
    assert len(found) == 4
    assert "of the database system 5" in found[0]
    assert "says that it is at 0/300000, not at 0/B00000" in found[1]
    assert "of timeline 2" in found[2]
    assert "2097152 bytes, and its name stands for 1048576" in found[3]


def test_names_alone_are_looked_at_when_asked(
    made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    made.path(segment(4)).write_bytes(b"broken")
    assert run(["archive", "verify", made.url, "--names-only"]) == 0
    made.remove(segment(4))
    assert run(["archive", "verify", made.url, "--names-only"]) == 1
    assert "0004 is missing" in capsys.readouterr().out


def test_ls_shows_runs_gaps_tail_and_histories(
    made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    made.remove(segment(5))
    made.receipt(segment(9)).unlink()
    assert run(["archive", "ls", made.url]) == 0
    shown = capsys.readouterr().out
    assert "timeline 1: 0/300000 to 0/500000, 0/600000 to 0/900000 (5 segments" in shown
    assert "GAP of 1 segment from 0/500000 on" in shown
    assert "timeline 2: tail up to 0/C02000" in shown
    assert "history is there" in shown
    assert "000000010000000000000009.zst: no receipt" in shown
    assert run(["archive", "ls", made.url, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["system_id"] == str(SYSTEM_ID) and found["segment_bytes"] == MB
    assert found["timelines"][1]["runs"] == [{"begin_lsn": "0/700000", "end_lsn": "0/C00000"}]


def test_an_archive_that_is_not_there_is_an_error_that_says_what_it_would_be(
    made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    (Path(made.url.removeprefix("file://")) / "main" / "5" / "logs").mkdir(parents=True)
    for arguments in (["--cluster", "other"], ["--system-id", "5"]):
        assert run(["archive", "ls", made.url, *arguments]) == 1
        assert "URL/CLUSTER/SYSTEM_ID" in capsys.readouterr().err


def names(numbers: range, timeline: int) -> list[str]:
    return [segment(number, timeline).name for number in numbers]


@pytest.mark.parametrize(
    "keep",
    [
        "0/5000D8",
        "0/5FFFFF",
        "000000010000000000000005",
        "000000010000000000000005.00000028.backup",
    ],
)
def test_prune_keeps_all_from_the_segment_on(made: Made, keep: str) -> None:
    assert run(["archive", "prune", made.url, "--keep", keep]) == 0
    assert made.segments() == names(range(5, 10), 1) + names(range(7, 12), 2)
    assert made.problems() == []


def test_prune_says_what_it_would_do_and_does_nothing_in_a_dry_run(
    made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    before = list(made.archive.objects())
    assert run(["archive", "prune", made.url, "--keep", "0/600000", "--dry-run"]) == 0
    assert list(made.archive.objects()) == before
    shown = capsys.readouterr().out
    assert "would delete 3 files" in shown and "all below 0/600000" in shown
    assert "00000001/000000010000000000000005.zst" in shown


def test_the_oldest_of_what_is_to_be_kept_decides(made: Made) -> None:
    keeps = ["--keep", "0/900000", "--keep", "0/4000D8", "--keep", "7d"]
    assert run(["archive", "prune", made.url, *keeps]) == 0
    assert made.segments()[0] == segment(3).name, "all of it is younger than a week"
    assert run(["archive", "prune", made.url, *keeps[:4]]) == 0
    assert made.segments()[0] == segment(4).name


def test_a_time_keeps_what_was_archived_since_and_the_segment_before(made: Made) -> None:
    for number in range(3, 7):
        os.utime(made.path(segment(number)), (1.7e9, 1.7e9))
    assert run(["archive", "prune", made.url, "--keep", "7d"]) == 0
    assert made.segments()[0] == segment(6).name


def test_a_segment_of_another_size_moves_no_other(
    made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    """All positions hang on the size of segments: half of it, and prune would delete too much."""
    first = made.path(segment(4))
    first.write_bytes(first.read_bytes() * 2)
    assert survey(made.archive).segment_bytes == MB
    assert [problem for problem in made.problems() if first.name not in problem] == []
    assert run(["archive", "prune", made.url, "--keep", "0/500000"]) == 0
    assert made.segments()[0] == segment(5).name


def test_prune_deletes_nothing_where_no_segment_is_what_its_receipt_says(
    made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = [segment(n) for n in range(3, 10)] + [segment(n, 2) for n in range(7, 12)]
    for path in map(made.path, whole):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2 - 1])
    before = list(made.archive.objects())
    assert run(["archive", "prune", made.url, "--keep", "0/900000"]) == 1
    assert "has no whole segment: nothing can be pruned" in capsys.readouterr().err
    assert list(made.archive.objects()) == before
    for timeline in (1, 2):
        for path in (Path(made.archive.url[7:]) / f"{timeline:08X}").glob("*.sha256"):
            path.unlink()
    assert run(["archive", "prune", made.url, "--keep", "0/900000"]) == 1


@pytest.mark.parametrize("number", range(3, 13))
def test_an_archive_that_was_pruned_past_a_fork_has_no_gap(made: Made, number: int) -> None:
    """The log left timeline 1 in segment 7, and its last part is archived up to there."""
    for later in range(7, 10):
        made.remove(segment(later))
    made.archive.put(partial_file(1, Lsn(0x780000), MB), wal_of(Lsn(7 * MB), size=MB // 2))
    assert made.problems() == []
    assert run(["archive", "prune", made.url, "--keep", f"0/{number:X}00028"]) == 0
    assert made.problems() == []
    kept = names(range(number, 7), 1) + names(range(max(7, number), 12), 2)
    assert made.segments() == (kept or [segment(11, 2).name])


def test_the_last_segment_of_the_newest_timeline_and_histories_stay_whatever_is_asked(
    made: Made,
) -> None:
    assert run(["archive", "prune", made.url, "--keep", "F/0"]) == 0
    assert made.segments() == [segment(11, 2).name]
    assert made.archive.read(history_file(2)) is not None
    assert made.problems() == []


def test_partials_of_segments_that_are_whole_go(made: Made) -> None:
    put_segment(made.archive, 12, timeline=2)
    assert run(["archive", "prune", made.url, "--keep", "0/0"]) == 0
    assert not [o for o in made.archive.objects() if o.file.kind is Kind.PARTIAL]
    assert len(made.segments()) == 13


def test_a_prune_that_is_interrupted_anywhere_leaves_no_problem(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete, deleted = Archive.delete, 0

    def delete_and_die(archive: Archive, found: ArchivedObject) -> None:
        nonlocal deleted
        delete(archive, found)
        deleted += 1
        raise KeyboardInterrupt

    monkeypatch.setattr(Archive, "delete", delete_and_die)
    for _ in range(30):
        with contextlib.suppress(KeyboardInterrupt):
            run(["archive", "prune", made.url, "--keep", "0/800000"])
        assert made.problems() == []
    assert deleted == 12
    assert made.segments() == [*names(range(8, 10), 1), *names(range(8, 12), 2)]


LABEL = """START WAL LOCATION: 0/6000028 (file 000000010000000000000006)
CHECKPOINT LOCATION: 0/6000060
BACKUP METHOD: streamed
START TIMELINE: 1
"""


def test_the_start_of_a_base_backup_is_found_however_it_was_taken(tmp_path: Path) -> None:
    from walkeeper_cli.archive.keep_values import parse_keep

    for name in ("label", "manifest", "tar"):
        (tmp_path / name).mkdir()
    (tmp_path / "label" / "backup_label").write_text(LABEL)
    manifest = {"WAL-Ranges": [{"Timeline": 1, "Start-LSN": "0/4000028", "End-LSN": "0/4000100"}]}
    (tmp_path / "manifest" / "backup_manifest").write_text(json.dumps(manifest))
    with tarfile.open(tmp_path / "tar" / "base.tar.gz", "w:gz") as tar:
        member = tarfile.TarInfo("backup_label")
        member.size = len(LABEL)
        tar.addfile(member, io.BytesIO(LABEL.encode()))
    starts = {each.given: each.lsn for each in parse_keep(str(tmp_path))}
    assert starts == {
        f"{tmp_path}/label": Lsn(0x6000028),
        f"{tmp_path}/manifest": Lsn(0x4000028),
        f"{tmp_path}/tar": Lsn(0x6000028),
    }
    label = tmp_path / "label" / "backup_label"
    assert parse_keep(str(label))[0].lsn == Lsn(0x6000028)
    label.write_text(LABEL.replace("0/6000028", "123456789/28"))
    with pytest.raises(click.UsageError, match="no base backup"):
        parse_keep(str(label))


def test_a_folder_without_a_base_backup_among_others_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from walkeeper_cli.archive.keep_values import parse_keep

    for name in ("monday", "half-copied"):
        (tmp_path / name).mkdir()
    (tmp_path / "monday" / "backup_label").write_text(LABEL)
    assert [each.lsn for each in parse_keep(str(tmp_path))] == [Lsn(0x6000028)]
    assert f"nothing is kept for it: {tmp_path}/half-copied" in capsys.readouterr().err


def test_an_invalid_value_of_keep_is_a_usage_error(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "backup_manifest").write_text("{}")
    for given in ("5", "nonsense", str(tmp_path / "archive"), str(tmp_path / "backup_manifest")):
        assert run(["archive", "prune", made.url, "--keep", given]) == 2
        assert "--keep" in capsys.readouterr().err
    assert run(["archive", "prune", made.url]) == 2
    assert len(made.segments()) == 12


def test_histories_are_read_as_postgresql_writes_them() -> None:
    text = b"1\t0/5000000\tno recovery target specified\n\n2\t1/A0\tbefore 2020-01-01\n# x\n"
    assert checked_timeline_file(text) == [(1, Lsn(0x5000000)), (2, Lsn(0x1000000A0))]
    for wrong in (b"x\n", b"1\t5\n", b"\xff\xff\n"):
        with pytest.raises(ValueError, match="line 1 is not a timeline and an LSN"):
            checked_timeline_file(wrong)
