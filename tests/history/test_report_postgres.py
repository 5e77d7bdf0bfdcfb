"""The report says what the WAL holds: sums, names, damage, and what another spacing would cost."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from tests.history.reading_whole import whole_stats
from tests.support.postgres_server import PostgresServer, program, run_as_server_user
from walkeeper_cli.program import run
from walkeeper_history.report.checkpoint_spacing import spacings
from walkeeper_history.report.data import ReportData, gather
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import make_plan
from walkeeper_wal.sources.threaded_reading import sweep

pytestmark = pytest.mark.postgres


class Page(HTMLParser):
    """Tags that are closed in order, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.said: list[str] = []
        self.links: list[str] = []
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "rect", "line"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        return None

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.said.append(data)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    settings = {"wal_keep_size": "2GB", "fsync": "off", "shared_buffers": "64MB"}
    with PostgresServer.create(settings, initdb_options=["--wal-segsize=1"]) as made:
        run_as_server_user([program("pgbench"), "-iq", "-s", "2", made.dsn()])
        for _ in range(3):
            made.sql("CHECKPOINT")
            run_as_server_user([program("pgbench"), "-n", "-c", "2", "-T", "3", made.dsn()])
        made.sql("CHECKPOINT", "SELECT pg_switch_wal()")
        yield made


def gathered(wal: Path) -> ReportData:
    files, data = open_files(str(wal)), ReportData()
    for part, _ in sweep(files, make_plan(files), gather):
        data.add(part)
    return data


def test_the_page_stands_alone_and_names_relations(server: PostgresServer, tmp_path: Path) -> None:
    pages, wal = tmp_path / "pages", tmp_path / "wal"
    pages.mkdir()
    shutil.copytree(server.data / "pg_wal", wal)  # a server that answers for names writes WAL
    command = ["history", "report", "--path", str(wal), "--output", str(pages / "wal.html")]
    assert run([*command, "--dsn", server.dsn()]) == 0
    text = (pages / "wal.html").read_text()
    page = Page(text)
    assert not page.links and "<script" not in text and "http" not in text
    said = " ".join(page.said)
    for name in ("public.pgbench_accounts", "public.pgbench_accounts_pkey", "Heap/HOT_UPDATE"):
        assert name in said
    records = whole_stats(wal)[0].totals()[0]
    assert f"{records:,}" in said and "every CRC is right" in said
    assert re.search(r"Checkpoints every 0:0\d:00 would|would not have saved|Too little", said)
    assert [path.name for path in pages.iterdir()] == ["wal.html"]


def test_segments_kept_for_wal_to_come_are_no_damage(
    server: PostgresServer, tmp_path: Path
) -> None:
    wal = Path(shutil.copytree(server.data / "pg_wal", tmp_path / "wal"))
    segments = sorted(path for path in wal.iterdir() if len(path.name) == 24)
    timeline, number = segments[-1].name[:16], int(segments[-1].name[16:], 16)
    kept = wal / f"{timeline}{number + 1:08X}"  # as PostgreSQL renames an old segment
    shutil.copyfile(segments[0], kept)
    output = tmp_path / "wal.html"
    assert run(["history", "report", "--path", str(wal), "--output", str(output)]) == 0
    said = " ".join(Page(output.read_text()).said)
    assert "None: every record was read, every CRC is right" in said
    assert "Left out (nothing is missing for it)" in said and kept.name in said


def test_points_and_relations_add_up_to_all_of_the_wal(server: PostgresServer) -> None:
    data = gathered(server.data / "pg_wal")
    log = data.log()
    _, size, images = data.stats.totals()
    assert log[:, 2].sum() == size + images
    assert log[:, 3].sum() == images
    assert (np.diff(log[:, 0]) >= 0).all() and (np.diff(log[:, 1]) >= 0).all()
    fpi = sum(sums["fpi_bytes"] for _, sums in data.relations.totals())
    assert fpi == images
    ended = server.rows("SELECT sum(xact_commit) FROM pg_stat_database")[0][0]
    assert 100 < data.outcomes["commit"] <= ended


def test_the_real_spacing_is_computed_as_it_was(server: PostgresServer) -> None:
    data = gathered(server.data / "pg_wal")
    log = data.log()
    log = log[log[:, 1] > 0]
    redo = np.sort(np.array([each["redo_lsn"] for each in data.checkpoints]))
    real = sum(sums["fpi"] for _, sums in data.relations.totals())
    times = (log[:, 0], log[:, 1] / 1e6)
    now, short, long = spacings(data.touches, redo, times, (1, 3600), 8192.0)
    assert 0.75 * real < now.images < 1.25 * real, "one block in 16 is looked at"
    assert long.images < now.images < short.images


def test_damage_is_in_the_page(server: PostgresServer, tmp_path: Path) -> None:
    wal = Path(shutil.copytree(server.data / "pg_wal", tmp_path / "wal"))
    victim = sorted(path for path in wal.iterdir() if len(path.name) == 24)[3]
    data = bytearray(victim.read_bytes())
    data[300_000] ^= 1
    victim.write_bytes(data)
    output = tmp_path / "wal.html"
    command = ["history", "report", "--path", str(wal), "--output", str(output)]
    assert run(command) == 1 and not output.exists()
    assert run([*command, "--on-error", "report"]) == 1
    said = " ".join(Page(output.read_text()).said)
    assert victim.name in said and "--dsn show names" in said
