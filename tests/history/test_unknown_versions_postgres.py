"""WAL of a version that this program does not know: refused by name, never read by other rules.

A server's own WAL gets the page magic of PostgreSQL 19; its CRCs do not cover that.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.postgres_server import PostgresServer
from walkeeper_cli.program import run

pytestmark = pytest.mark.postgres
MAGIC_19 = 0xD121
PAGE = 8192
SUPPORTED = "D106 (13), D10D (14), D110 (15), D113 (16), D116 (17), D118 (18)"
REFUSED = f"its page magic is D121; WAL of PostgreSQL is read with {SUPPORTED} only"
COMMANDS = (
    ("stats",), ("find", "all"), ("tables", "--output", "tables"), ("index", "--output", "index"),
    ("tail",), ("report", "--output", "page.html"), ("table-at", "t"), ("changes",),
    ("undo", "--all-tables"),
)  # fmt: skip


@pytest.fixture(scope="module")
def wal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, bytes]]:
    """Segments of a server by name."""
    settings = {"fsync": "off", "wal_keep_size": "1GB"}
    with PostgresServer.create(settings, initdb_options=["--wal-segsize=1"]) as server:
        server.sql("CREATE TABLE t (a int)", "INSERT INTO t SELECT generate_series(1, 40000)")
        files = [path for path in (server.data / "pg_wal").iterdir() if len(path.name) == 24]
        yield {path.name: path.read_bytes() for path in sorted(files)}


def with_magic(data: bytes) -> bytes:
    pages = (data[at : at + PAGE] for at in range(0, len(data), PAGE))
    magic = MAGIC_19.to_bytes(2, "little")
    return b"".join(magic + page[2:] if page[1] == magic[1] else page for page in pages)


def placed(wal: dict[str, bytes], path: Path) -> str:
    path.mkdir()
    for name, data in wal.items():
        (path / name).write_bytes(data)
    return str(path)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_it_is_refused_with_what_is_supported(
    wal: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    path = placed({name: with_magic(data) for name, data in wal.items()}, tmp_path / "wal")
    assert run(["history", *command, "--path", path, "--on-error", "skip"]) == 1
    said = capsys.readouterr()
    assert REFUSED in said.err and not said.out


def test_a_segment_of_it_among_others_is_named(
    wal: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = sorted(wal)[2]
    path = placed({**wal, odd: with_magic(wal[odd])}, tmp_path / "wal")
    for command in (("stats",), ("table-at", "t"), ("changes",)):
        assert run(["history", *command, "--path", path]) == 1
        assert f"{odd}: {REFUSED}" in capsys.readouterr().err
    assert run(["history", "stats", "--path", path, "--on-error", "report"]) == 1
    said = capsys.readouterr()
    assert f"{odd}: {REFUSED}" in said.err and "Heap" in said.out
