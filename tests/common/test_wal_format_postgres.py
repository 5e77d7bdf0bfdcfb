"""Record boundaries against pg_waldump: of made WAL, and of a real PostgreSQL's."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from tests.support.wal_maker import PAGE, WalMaker, up_to_page_end
from walkeeper_common.lsn import Lsn, segment_name
from walkeeper_common.postgres.walformat import (
    RecordEnd,
    record_end_before,
    scan,
)
from walkeeper_common.postgres.walpages import (
    header_bytes,
    page_header,
    skip_payload,
)

TOOLS = Path(os.environ.get("PGBIN", "/usr/lib/postgresql/15/bin"))
DUMPED = re.compile(rb"len \(rec/tot\): +\d+/ *(\d+),.* lsn: ([0-9A-F]+/[0-9A-F]+), prev")


def pg_waldump(directory: Path, start: Lsn, end: Lsn, segment_bytes: int) -> list[tuple[Lsn, str]]:
    """List (record start, the rest of the line) of each record that pg_waldump prints."""
    begin = segment_name(1, start, segment_bytes)
    last = segment_name(1, Lsn(end - 1), segment_bytes)
    run = subprocess.run(
        [TOOLS / "pg_waldump", "-p", directory, "-s", str(start), "-e", str(end), begin, last],
        capture_output=True,
        check=False,
    )
    records = []
    for line in run.stdout.splitlines():
        match = DUMPED.search(line)
        assert match, f"{line=}"
        records.append((Lsn.parse(match[2].decode()), line.decode()))
    return records


@pytest.mark.postgres
def test_made_wal_is_real_for_pg_waldump(tmp_path: Path) -> None:
    if not (TOOLS / "pg_waldump").exists():
        pytest.skip(f"no pg_waldump in {TOOLS}")
    segment_bytes = 1 << 20
    random = Random(4)
    wal = WalMaker(random, segment_bytes=segment_bytes)
    for size in (0, 1, 255, 256, 8000, 40000):
        wal.record(size)
    wal.record(up_to_page_end(wal, short_by=16))
    wal.record(20)
    wal.record(up_to_page_end(wal, short_by=0))
    wal.record(60000)
    wal.crash(wal.records[-1].end_lsn - 30000)
    wal.switch()
    wal.record(3 << 20)
    for _ in range(2000):
        wal.record(random.randrange(900))
    padded = wal.read(wal.start_lsn, wal.end_lsn)
    padded += bytes(-len(padded) % segment_bytes)
    for offset in range(0, len(padded), segment_bytes):
        name = segment_name(1, wal.start_lsn + offset, segment_bytes)
        (tmp_path / name).write_bytes(padded[offset : offset + segment_bytes])
    dumped = pg_waldump(tmp_path, wal.start_lsn, wal.end_lsn, segment_bytes)
    assert [lsn for lsn, _ in dumped] == [m.start_lsn for m in wal.records if m.complete]


class Directory:
    def __init__(self, path: Path, segment_bytes: int) -> None:
        self.path, self.segment_bytes = path, segment_bytes

    def read(self, begin: Lsn, end: Lsn) -> bytes:
        pieces = []
        while begin < end:
            start = begin.round_down(self.segment_bytes)
            upto = min(end, start + self.segment_bytes)
            data = (self.path / segment_name(1, begin, self.segment_bytes)).read_bytes()
            pieces.append(data[begin - start : upto - start])
            begin = upto
        return b"".join(pieces)


@pytest.fixture
def real_wal() -> Iterator[tuple[Path, Lsn]]:
    """pg_wal of a stopped PostgreSQL 15 after some load, and the end of its WAL."""
    if not (TOOLS / "initdb").exists():
        pytest.skip(f"no PostgreSQL in {TOOLS}")
    user = "postgres" if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="wk", dir="/tmp") as name:
        if user:
            shutil.chown(name, user)

        def run(tool: str, *arguments: str) -> str:
            command = [str(TOOLS / tool), *arguments]
            return subprocess.run(
                command, user=user, cwd="/", check=True, stdout=subprocess.PIPE, text=True
            ).stdout

        data = f"{name}/data"
        run("initdb", "-D", data, "-A", "trust", "-U", "postgres", "--wal-segsize=1", "-N")
        options = f"-k {name} -c listen_addresses= -c fsync=off"
        options += " -c wal_keep_size=900 -c wal_level=logical"
        run("pg_ctl", "-D", data, "-o", options, "-l", f"{name}/log", "-w", "start")
        try:

            def sql(text: str) -> str:
                return run("psql", "-h", name, "-U", "postgres", "-XAtqc", text).strip()

            run("pgbench", "-h", name, "-U", "postgres", "-i", "-q", "-s", "1", "postgres")
            run("pgbench", "-h", name, "-U", "postgres", "-c", "2", "-t", "300", "postgres")
            sql("select pg_switch_wal()")
            sql("select pg_logical_emit_message(false, 'x', repeat('walkeeper', 500000))")
            for size in range(8000, 8260, 7):
                sql(f"select pg_logical_emit_message(true, 'y', repeat('z', {size}))")
            sql("select pg_switch_wal(); create table t (a text); select pg_switch_wal()")
            run("pgbench", "-h", name, "-U", "postgres", "-c", "2", "-t", "200", "postgres")
        finally:
            run("pg_ctl", "-D", data, "-m", "fast", "-w", "stop")
        control = run("pg_controldata", data)
        checkpoint = re.search(r"Latest checkpoint location: +(\S+)", control)
        assert checkpoint
        yield Path(data) / "pg_wal", Lsn.parse(checkpoint[1])


@pytest.mark.postgres
def test_real_wal_ends_where_pg_waldump_says(real_wal: tuple[Path, Lsn]) -> None:
    path, last_start = real_wal
    segment_bytes = 1 << 20
    wal = Directory(path, segment_bytes)
    first_lsn = min(
        Lsn(int(n.name[8:16], 16) * (1 << 32) + int(n.name[16:24], 16) * segment_bytes)
        for n in path.glob("0" * 7 + "1*")
        if re.fullmatch(r"[0-9A-F]{24}", n.name)
    )
    limit = last_start.round_up(segment_bytes)
    dumped = pg_waldump(path, first_lsn, limit, segment_bytes)
    assert dumped[-1][0] == last_start, f"{dumped[-1]=} {last_start=}"
    ends: list[Lsn] = []
    for (start, line), (following, _) in pairwise(dumped):
        page_lsn = following.round_down(PAGE)
        at_front = following == page_lsn + header_bytes(page_lsn, segment_bytes)
        ends.append(page_lsn if at_front else following)
        if "desc: SWITCH" in line:
            assert ends[-1] % segment_bytes == 0, f"{line=}"
            page_lsn = start.round_down(PAGE)
            before = start - page_lsn - header_bytes(page_lsn, segment_bytes)
            ends[-1] = skip_payload(page_lsn, before + 24, segment_bytes)
    found = scan(wal, start_lsn=first_lsn, limit_lsn=limit, segment_bytes=segment_bytes)
    assert found.start_lsn == last_start, f"{found=}"
    assert f"invalid record length at {found.end_lsn}: wanted 24, got 0" in found.reason
    ends.append(found.end_lsn)
    random = Random(1)
    chosen = sorted(random.sample(range(1, len(ends)), 250)) + [
        i for i, (_, line) in enumerate(dumped) if i and ("SWITCH" in line or "MESSAGE" in line)
    ]
    for i in chosen:
        start, end = dumped[i][0], ends[i]
        last = RecordEnd(dumped[i - 1][0], ends[i - 1])
        cuts = {start, start + 1, start + 8, start + 23, Lsn(end - 1), Lsn(end - 8)}
        cuts |= {Lsn(random.randrange(start, end)) for _ in range(2)}
        for flush_lsn in cuts:
            found_end = record_end_before(
                wal, first_lsn=first_lsn, flush_lsn=flush_lsn, segment_bytes=segment_bytes
            )
            assert found_end == last or flush_lsn >= end, f"{flush_lsn=} {dumped[i]=}"
        assert record_end_before(
            wal, first_lsn=first_lsn, flush_lsn=end, segment_bytes=segment_bytes
        ) == RecordEnd(start, end), f"{dumped[i]=}"
    head = page_header(wal.read(first_lsn, first_lsn + 40))
    assert (head.magic, head.segment_bytes, head.page_bytes) == (0xD110, segment_bytes, PAGE)
