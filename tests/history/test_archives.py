"""Archives are found as they lie: names, layouts, compressions, timelines, and what is wrong."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from tests.history.reading_whole import stats_of_segment, whole_stats
from tests.support.s3_server import BUCKET, s3_server
from tests.support.wal_maker import WalMaker
from walkeeper_archive.cloud_store import CloudStore
from walkeeper_archive.open_store import open_store
from walkeeper_cli.program import run
from walkeeper_common.errors import Refused
from walkeeper_common.lsn import LSN_MAX, Lsn, segment_name
from walkeeper_history.change_files import ChangeFiles
from walkeeper_history.rows.stats import Stats
from walkeeper_wal.sources.archive_names import archived_file
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import make_plan
from walkeeper_wal.sources.segment_timelines import Stretch, parse_history, passes_through
from walkeeper_wal.sources.threaded_reading import sweep
from walkeeper_wal.sources.wal_files import LocalFiles, ObjectFiles
from walkeeper_wal.wal_errors import DamagedWal, HistoryError

MB = 1 << 20
SHA = hashlib.sha1(b"x").hexdigest()
FIRST = "000000010000000000000001"


def packed(codec: str) -> Callable[[bytes], bytes]:
    def pack(data: bytes) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, codec) as stream:
            stream.write(data)
        return bytes(sink.getvalue())

    return pack


def filled(maker: WalMaker, size: int) -> WalMaker:
    while maker.end_lsn - maker.start_lsn < size:
        maker.record(maker._random.choice((0, 40, 900, 9000)))
    return maker


def made_stream(size: int = 5 * MB // 2) -> WalMaker:
    return filled(WalMaker(Random(9), segment_bytes=MB), size)


def files_of(maker: WalMaker) -> dict[str, bytes]:
    found = {}
    for begin in range(int(maker.start_lsn), int(maker.end_lsn), MB):
        data = maker.read(Lsn(begin), min(Lsn(begin + MB), maker.end_lsn))
        found[segment_name(maker.timeline, Lsn(begin), MB)] = data.ljust(MB, b"\0")
    return found


def lay(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


LAYOUTS: dict[str, Callable[[str, bytes], tuple[str, bytes]]] = {
    "pg_wal": lambda name, data: (name, data),
    "pg_receivewal gzip": lambda name, data: (f"{name}.gz", gzip.compress(data)),
    "pg_receivewal lz4": lambda name, data: (f"{name}.lz4", packed("lz4")(data)),
    "walkeeper": lambda name, data: (
        f"main/7000/{name[:8]}/{name}.zst",
        packed("zstd")(data),
    ),
    "barman": lambda name, data: (f"srv/wals/{name[:16]}/{name}", gzip.compress(data)),
    "barman bzip2": lambda name, data: (f"srv/wals/{name[:16]}/{name}", bz2.compress(data)),
    "pgbackrest": lambda name, data: (
        f"archive/demo/15-1/{name[:16]}/{name}-{SHA}.gz",
        gzip.compress(data),
    ),
    "wal-g": lambda name, data: (f"wal_005/{name}.lz4", packed("lz4")(data)),
    "wal-g brotli": lambda name, data: (f"wal_005/{name}.br", packed("brotli")(data)),
    "xz": lambda name, data: (f"{name}.xz", lzma.compress(data)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_archive_is_read_as_it_lies(tmp_path: Path, layout: str) -> None:
    maker = made_stream()
    lay(tmp_path, dict(LAYOUTS[layout](name, data) for name, data in files_of(maker).items()))
    stats, plan, problems = whole_stats(tmp_path)
    assert stats.totals()[0] == len(maker.records)
    assert stats.end_lsn == maker.records[-1].end_lsn
    assert len(plan.segments) == 3 and not problems


def test_names_that_are_no_wal_are_passed_over() -> None:
    for name in (
        f"{FIRST}.00000028.backup",
        f"{FIRST}_delta.lz4",
        "archive_status/" + FIRST + ".done",
        f"archive_status/{FIRST}",
        "xlog.db",
        f"{FIRST}.tmp",
        FIRST.replace("1", "G"),
        f"{FIRST}.gpg",
    ):
        assert archived_file(name, MB) is None, name


def test_partial_files_are_known_by_all_their_names() -> None:
    for name, end in (
        (f"{FIRST}.partial", None),
        (f"{FIRST}.gz.partial", None),
        (f"{FIRST}.partial.zst", None),
        (f"{FIRST}.0000000000123456.partial.zst", 0x123456),
        (f"{FIRST}.partial-{SHA}.gz", None),
    ):
        found = archived_file(name, 1)
        assert found and found.is_partial and found.end_lsn == end, name
        assert found.segment == FIRST


def test_a_whole_segment_is_read_before_its_partial_one(tmp_path: Path) -> None:
    maker = made_stream()
    names = files_of(maker)
    lay(tmp_path, {**names, **{f"{name}.partial": b"" for name in names}})
    _, plan, problems = whole_stats(tmp_path)
    assert not problems and not any(segment.is_partial for segment in plan.segments)


def test_the_longer_of_two_tails_is_read(tmp_path: Path) -> None:
    maker = made_stream()
    names = files_of(maker)
    last = max(names)
    tail = names.pop(last)
    short, long = (f"{last}.{end:016X}.partial" for end in (0x300000, int(maker.end_lsn)))
    lay(tmp_path, {**names, long: tail, short: tail[:8192].ljust(MB, b"\0")})
    stats, _, problems = whole_stats(tmp_path)
    assert stats.totals()[0] == len(maker.records) and not problems


def test_a_new_timeline_is_followed_from_where_the_old_one_was_left(tmp_path: Path) -> None:
    maker = made_stream()
    switch = maker.records[len(maker.records) // 2].end_lsn
    old = files_of(maker)
    maker.forget_after(switch)
    maker.timeline = 2
    kept = len(maker.records)
    filled(maker, 5 * MB // 2)
    begin = switch.round_down(MB)
    new = {
        segment_name(2, Lsn(lsn), MB): maker.read(
            Lsn(lsn), min(Lsn(lsn + MB), maker.end_lsn)
        ).ljust(MB, b"\0")
        for lsn in range(int(begin), int(maker.end_lsn), MB)
    }
    history = {"00000002.history": f"1\t{switch}\tno recovery target\n".encode()}
    lay(tmp_path, {**old, **new, **history})
    stats, plan, problems = whole_stats(tmp_path)
    assert stats.totals()[0] == len(maker.records) and not problems
    assert [segment.timeline for segment in plan.segments] == [1, 2, 2]
    # The new timeline's first segment was never archived: the old one's part of it will do.
    (tmp_path / min(new)).unlink()
    stats, plan, problems = whole_stats(tmp_path)
    assert plan.segments[1].timeline == 1 and plan.segments[1].end_lsn == switch
    assert [problem.fatal for problem in problems if problem.fatal]
    first_half = make_plan(open_files(str(tmp_path)), end_lsn=int(switch))
    assert sum(1 for _ in first_half.segments) == 2
    assert kept <= stats.totals()[0] < len(maker.records)


def test_a_history_that_does_not_make_sense_is_damage() -> None:
    assert parse_history(b"1\t0/5000\tx\n\n2 0/6000 y", 3, "f")[-1] == Stretch(3, (1 << 64) - 1)
    for text in ("1", "x\t0/1", "3\t0/1", "2\t0/9\n1\t0/10", "1\t0/9\n2\t0/8", "1\tzero"):
        with pytest.raises(DamagedWal, match=r"0003\.history: line [12] is (not|out of)"):
            parse_history(text.encode(), 3, "00000003.history")


def test_several_archives_below_are_refused_by_name(tmp_path: Path) -> None:
    maker = made_stream()
    lay(tmp_path / "a" / "wals" / FIRST[:16], files_of(maker))
    lay(tmp_path / "b" / "wals" / FIRST[:16], files_of(maker))
    with pytest.raises(HistoryError, match=r"a/wals.*b/wals"):
        whole_stats(tmp_path)
    assert not whole_stats(tmp_path / "a")[2]


def test_a_missing_segment_is_named(tmp_path: Path) -> None:
    names = files_of(made_stream(4 * MB))
    lay(tmp_path, names)
    (tmp_path / sorted(names)[1]).unlink()
    _, _, problems = whole_stats(tmp_path)
    gap = next(problem for problem in problems if "missing between" in problem.reason)
    assert (gap.start_lsn, gap.end_lsn, gap.fatal) == (2 * MB, 3 * MB, True)


def test_a_segment_of_another_cluster_is_named_and_left_out(tmp_path: Path) -> None:
    names = files_of(made_stream(4 * MB))
    lay(tmp_path, names)
    other = WalMaker(Random(1), segment_bytes=MB, system_id=5, start_lsn=Lsn(2 * MB))
    foreign = sorted(names)[1]
    (tmp_path / foreign).write_bytes(files_of(filled(other, MB))[foreign])
    _, _, problems = whole_stats(tmp_path)
    assert any("of cluster 5 (PostgreSQL 15) among" in problem.reason for problem in problems)
    assert all(problem.fatal for problem in problems)
    alone = make_plan(open_files(str(tmp_path)), start_lsn=2 * MB, end_lsn=3 * MB)
    assert alone.system_id != 5, "not even a range of it alone is read as if it belonged there"


def upgraded(directory: Path, timeline: int) -> Path:
    """Lay the WAL of a cluster, and that of a new one behind it on timeline 1, as pg_upgrade
    does."""
    old = filled(WalMaker(Random(9), segment_bytes=MB, timeline=timeline), 12 * MB)
    old.switch()
    new = WalMaker(Random(1), segment_bytes=MB, system_id=5, start_lsn=Lsn(14 * MB), magic=0xD116)
    history = {"00000003.history": b"1\t0/100000\n"}
    lay(directory, {**files_of(old), **files_of(filled(new, 3 * MB)), **history})
    return directory


def test_wal_of_an_upgraded_cluster_is_read_by_ranges_of_one_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = open_files(str(upgraded(tmp_path, 1)))
    old, new = make_plan(files, end_lsn=14 * MB), make_plan(files, start_lsn=14 * MB)
    assert old.system_id != new.system_id == 5
    with pytest.raises(
        HistoryError, match=r"of cluster 5 \(PostgreSQL 17\) among .* directory of its own"
    ):
        list(sweep(files, make_plan(files), stats_of_segment))
    for command in ("stats", "changes", "undo --all-tables", "table-at t", "find drop"):
        assert run(["history", *command.split(), "--path", str(tmp_path)]) == 1
        assert "keep the WAL of each in a directory of its own" in capsys.readouterr().err
    for plan in (old, new):
        list(sweep(files, plan, stats_of_segment))


def test_wal_that_pg_upgrade_put_on_a_lower_timeline_is_not_passed_over(tmp_path: Path) -> None:
    files = open_files(str(upgraded(tmp_path, 3)))
    with pytest.raises(HistoryError, match=r"of cluster 5 \(PostgreSQL 17\) .* \(--timeline\)"):
        make_plan(files)
    assert make_plan(files, timeline=3).system_id != 5
    assert make_plan(files, timeline=1).system_id == 5


def test_a_segment_of_another_branch_of_the_same_cluster_is_noticed(tmp_path: Path) -> None:
    maker = made_stream(4 * MB)
    names = files_of(maker)
    lay(tmp_path, names)
    maker.forget_after(maker.records[20].end_lsn)
    replaced = sorted(names)[2]
    (tmp_path / replaced).write_bytes(files_of(filled(maker, 4 * MB))[replaced])
    _, _, problems = whole_stats(tmp_path)
    assert any(problem.fatal for problem in problems)


def test_encrypted_archives_are_a_clear_error(tmp_path: Path) -> None:
    for name, data in (
        (f"{FIRST}-{SHA}.gz", b"Salted__12345678rest"),
        (f"{FIRST}.lz4", b"\xfe\x01\x77rest of it, whatever it is"),
        (FIRST, b"-----BEGIN PGP MESSAGE-----"),
    ):
        directory = tmp_path / name
        lay(directory, {name: data})
        with pytest.raises(HistoryError, match="encrypted"):
            whole_stats(directory)
        shutil.rmtree(directory)


@pytest.mark.parametrize("suffix", ["", ".gz", ".lz4", ".zst", ".bz2", ".xz"])
def test_files_cut_off_anywhere_are_problems_and_nothing_worse(tmp_path: Path, suffix: str) -> None:
    packs: dict[str, Callable[[bytes], bytes]] = {
        "": bytes, ".gz": gzip.compress, ".lz4": packed("lz4"), ".zst": packed("zstd"),
        ".bz2": bz2.compress, ".xz": lzma.compress,
    }  # fmt: skip
    pack = packs[suffix]
    maker = made_stream()
    names = files_of(maker)
    whole = {name + suffix: pack(data) for name, data in names.items()}
    middle = sorted(whole)[1]
    for kept in (0, 1, 7, 20, 8191, len(whole[middle]) // 2, len(whole[middle]) - 1):
        directory = lay(tmp_path / f"{kept}", {**whole, middle: whole[middle][:kept]})
        stats, _, problems = whole_stats(directory)
        if suffix and kept == len(whole[middle]) - 1:
            continue  # some packings do not need the last byte
        assert any(problem.fatal and middle in problem.file for problem in problems), kept
        assert stats.totals()[0] < len(maker.records)


def test_one_file_can_be_read_alone(tmp_path: Path) -> None:
    names = files_of(made_stream())
    lay(tmp_path, names)
    stats, plan, _ = whole_stats(tmp_path / max(names))
    assert len(plan.segments) == 1 and stats.totals()[0]


def test_a_range_takes_the_records_that_start_in_it(tmp_path: Path) -> None:
    maker = made_stream()
    lay(tmp_path, files_of(maker))
    files = LocalFiles(tmp_path)
    from walkeeper_wal.sources.reading import SegmentReader

    begin, end = (maker.records[k].start_lsn for k in (50, -50))
    plan = make_plan(files, start_lsn=int(begin), end_lsn=int(end))
    reader = SegmentReader(files)
    found = [
        lsn
        for index in range(len(plan.segments))
        for batch in reader.read(plan.reachable, index)
        for lsn in batch.start_lsn().tolist()
    ]
    assert found == [int(made.start_lsn) for made in maker.records[50:-50]]


def test_segments_kept_for_wal_to_come_are_not_the_log(tmp_path: Path) -> None:
    maker = made_stream(4 * MB)
    names = files_of(maker)
    # A running server's directory has recycled segments and a fresh one after its log.
    after = [segment_name(1, Lsn(lsn), MB) for lsn in (6 * MB, 7 * MB)]
    lay(tmp_path, {**names, after[0]: names[min(names)], after[1]: bytes(MB)})
    stats, _, problems = whole_stats(tmp_path)
    assert stats.totals()[0] == len(maker.records)
    assert [problem.fatal for problem in problems] == [False]
    assert after[0] in problems[0].file and after[1] in problems[0].reason


@pytest.mark.parametrize("layout", ["pg_wal", "walkeeper", "pgbackrest"])
def test_an_object_store_is_read_like_a_directory(tmp_path: Path, layout: str) -> None:
    """Through obstore, as s3:// is; file:// is the store that needs no server."""
    maker = made_stream()
    lay(tmp_path, dict(LAYOUTS[layout](name, data) for name, data in files_of(maker).items()))
    files = ObjectFiles(f"file://{tmp_path}")
    plan = make_plan(files)
    stats = Stats()
    for part, _ in sweep(files, plan, stats_of_segment):
        stats.add(part)
    assert stats.totals()[0] == len(maker.records)
    assert stats.sums == whole_stats(tmp_path)[0].sums


def test_a_file_url_names_the_folder_in_which_the_archive_is(tmp_path: Path) -> None:
    """Safekeepers wrote to `my wal`, and the commands looked for `my%20wal`."""
    folder = tmp_path / "my wal#1"
    folder.mkdir()
    url = f"file://{tmp_path}/my%20wal%231"
    open_store(url).put_new(FIRST, b"x")
    assert open_files(url).list_files() == [(FIRST, 1)]
    assert open_files(str(folder)).list_files() == [(FIRST, 1)], "a path has no escapes"
    ChangeFiles.open(url).beat(7, {})
    assert (folder / "position.json").exists()


@pytest.mark.parametrize("part", ["?x=1", "#1"])
def test_a_file_url_that_goes_on_after_its_path_is_refused(tmp_path: Path, part: str) -> None:
    """The archive was in the folder whose name ends before the mark."""
    url = f"file://{tmp_path}{part}"
    for opened in (open_store, open_files, ChangeFiles.open):
        with pytest.raises((Refused, HistoryError), match="write %3F or %23"):
            opened(url)
    with pytest.raises(HistoryError, match="names a host"):
        open_files("file://host/wal")


def test_an_endpoint_without_tls_is_read_as_safekeepers_write_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with s3_server() as served:
        for name, value in served.environment.items():
            monkeypatch.setenv(name, value)
        url = f"s3://{BUCKET}/main"
        CloudStore(url).put_new(FIRST, b"x")
        files = ObjectFiles(url)
        assert files.list_files() == [(FIRST, 1)] and files.read(FIRST).tobytes() == b"x"


def test_an_object_stores_error_is_an_error_of_the_archive(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="nosuchstore"):
        open_files("nosuchstore://bucket/wal")
    with pytest.raises(HistoryError, match="no WAL segments"):
        make_plan(ObjectFiles(f"file://{tmp_path}"))
    with pytest.raises(HistoryError, match=FIRST):
        ObjectFiles(f"file://{tmp_path}").read(FIRST)


def test_a_place_is_of_the_timeline_that_the_path_has_there() -> None:
    path = parse_history(b"1\t0/300\twhy\n2\t0/500\twhy\n", 3, "a history")
    for lsn, timeline in ((0x2FF, 1), (0x300, 2), (0x4FF, 2), (0x500, 3), (0x9000, 3)):
        found = [each for each in (1, 2, 3, 4) if passes_through(path, lsn, each)]
        assert found == [timeline], hex(lsn)
    guessed = (Stretch(1, int(LSN_MAX)), Stretch(3, int(LSN_MAX)))
    assert [passes_through(guessed, 0x300, each) for each in (1, 2, 3)] == [True, False, True]
    assert passes_through((), 0x300, 2), "a live log has no path"
