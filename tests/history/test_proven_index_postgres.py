"""An index changes what is read and never an answer: a fitting one, a stale, wrong or cut one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.history.parted_histories import Parted
from tests.support.postgres_server import PostgresServer, own
from walkeeper_cli.program import run
from walkeeper_common.lsn import Lsn
from walkeeper_wal.sources.reading import Reading

pytestmark = pytest.mark.postgres
Output = pytest.CaptureFixture[str]
SETTINGS = {"wal_keep_size": "2GB", "max_prepared_transactions": "9", "fsync": "off",
            "autovacuum": "off", "wal_level": "replica"}  # fmt: skip


def work(server: PostgresServer, seed: int) -> str:
    """Fill segments with one table's rows, between few changes of others; an LSN between."""

    def fill(rounds: int) -> None:
        for _ in range(rounds):
            server.sql(
                f"INSERT INTO busy SELECT i, repeat(md5((i + {seed})::text), 20) "
                "FROM generate_series(1, 3000) i"
            )
            server.sql("SELECT pg_switch_wal()")

    with server.connect() as c:
        c.execute(b"CREATE TABLE IF NOT EXISTS busy (id int, t text)")
        c.execute(b"CREATE TABLE IF NOT EXISTS orders (id int PRIMARY KEY, t text)")
        c.execute(b"CREATE TABLE IF NOT EXISTS gone (id int)")
        c.execute(f"INSERT INTO orders SELECT i, '{seed}' FROM generate_series(1, 50) i".encode())
    server.sql("CHECKPOINT")
    with server.connect() as open_one, server.connect() as prepared:
        open_one.execute(b"BEGIN; INSERT INTO orders VALUES (1000, 'first'); SAVEPOINT a")
        fill(3)
        prepared.execute(b"BEGIN; DELETE FROM orders WHERE id = 7; PREPARE TRANSACTION 'p'")
        fill(3)
        open_one.execute(b"DELETE FROM orders WHERE id < 5; RELEASE a; COMMIT")
        prepared.execute(b"COMMIT PREPARED 'p'")
    lsn = server.sql("SELECT pg_current_wal_insert_lsn()")
    fill(3)
    server.sql("DROP TABLE gone")
    fill(3)
    server.sql("UPDATE orders SET t = 'last' WHERE id = 30")
    server.sql("SELECT pg_switch_wal()")
    return str(Lsn.parse(lsn))


class Twins:
    """Two servers that went on from one copy: WAL of one cluster and timeline, another content."""

    def __init__(self, folder: Path) -> None:
        with PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as server:
            server.sql("CREATE TABLE early (id int)")
            server.stop()
            shutil.copytree(server.data, folder / "copy")
            server.start()
            self.lsn = work(server, 1)
            server.stop()
            shutil.copytree(server.data / "pg_wal", folder / "a")
            shutil.rmtree(server.data)
            shutil.copytree(folder / "copy", server.data)
            own(server.data)
            server.start()
            work(server, 2)
            server.stop()
            shutil.copytree(server.data / "pg_wal", folder / "b")
        self.a, self.b = folder / "a", folder / "b"


def test_histories_that_part_within_a_segment_have_other_proofs(
    tmp_path: Path, capsys: Output
) -> None:
    """Both ends of the segment are the same, since each history switched to the next one."""
    made = Parted.make(tmp_path, "SELECT txid_current()", "DELETE FROM t WHERE id < 50")
    first, second, segment = made.first, made.second, made.segment
    one, other = ((wal / segment).read_bytes() for wal in (first, second))
    assert one != other and (one[:8192], one[-8192:]) == (other[:8192], other[-8192:])
    index, find = ("--index", str(tmp_path / "index")), ["history", "find", "delete", "--path"]
    assert run([*find, str(first), *index]) == 0
    assert "delete of" not in capsys.readouterr().out
    assert run([*find, str(second), *index]) == 0
    assert "delete of 49 rows" in capsys.readouterr().out


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twins]:
    yield Twins(tmp_path_factory.mktemp("twins"))


class Asked:
    """Commands and their answers, and the segments that they read."""

    def __init__(self, twins: Twins, capsys: Output) -> None:
        self.lsn, self.capsys, self.segments = twins.lsn, capsys, 0

    def answers(self, wal: Path, *index: str) -> list[tuple[int, str]]:
        before, self.segments = Reading.__iter__, 0

        def counted(reading: Reading) -> Any:
            self.segments += 1
            return before(reading)

        found = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Reading, "__iter__", counted)
            for command in self.commands():
                self.capsys.readouterr()
                code = run(["history", *command, "--path", str(wal), *index])
                found.append((code, self.capsys.readouterr().out))
        return found

    def commands(self) -> Iterator[list[str]]:
        yield ["find", "all", "--json"]
        for xid in range(725, 745, 3):
            yield ["find", "--xid", str(xid), "--json"]
        yield ["table-at", "orders", "--lsn", self.lsn]
        yield ["changes", "--table", "orders"]
        yield ["changes", "--table", "orders", "--start-lsn", self.lsn]
        yield ["changes", "--table", "gone", "--allow-missing"]
        yield ["undo", "--table", "orders", "--start-lsn", self.lsn]


@pytest.fixture
def asked(twins: Twins, capsys: Output) -> Asked:
    return Asked(twins, capsys)


def test_an_index_reads_few_segments_and_answers_the_same(
    twins: Twins, asked: Asked, tmp_path: Path
) -> None:
    index = tmp_path / "index.parquet"
    plain, every = asked.answers(twins.a), asked.segments
    assert {code for code, _ in plain} == {0}
    assert len(set(plain)) > 8
    assert asked.answers(twins.a, "--index", str(index)) == plain, "it is written here"
    assert asked.answers(twins.a, "--index", str(index)) == plain
    assert asked.segments < every / 2, f"{asked.segments} of {every}"


def test_an_index_of_other_wal_with_the_same_names_changes_no_answer(
    twins: Twins, asked: Asked, tmp_path: Path
) -> None:
    """A cluster was taken back to a copy, and went on with the same timeline."""
    index = tmp_path / "index.parquet"
    assert run(["history", "index", "--path", str(twins.a), "--output", str(index)]) == 0
    plain, every = asked.answers(twins.b), asked.segments
    assert plain != asked.answers(twins.a)
    assert asked.answers(twins.b, "--index", str(index)) == plain
    assert asked.segments > every / 2, "few segments are the same in both"
    asked.capsys.readouterr()
    assert run(["history", "index", "--path", str(twins.b), "--output", str(index)]) == 0
    assert ", 0 of them new" not in asked.capsys.readouterr().out, "what was replaced is read"
    assert asked.answers(twins.b, "--index", str(index)) == plain
    assert asked.segments < every / 2


def test_rows_that_speak_of_other_segments_change_no_answer(
    twins: Twins, asked: Asked, tmp_path: Path
) -> None:
    index = tmp_path / "index.parquet"
    assert run(["history", "index", "--path", str(twins.a), "--output", str(index)]) == 0
    table = pq.read_table(index)
    names = table.column("segment").to_pylist()
    rotated = pa.array([*names[1:], names[0]], pa.string())
    wrong = table.set_column(0, "segment", rotated).replace_schema_metadata(table.schema.metadata)
    pq.write_table(wrong, index)
    assert asked.answers(twins.a, "--index", str(index)) == asked.answers(twins.a)


def test_a_cut_or_damaged_index_is_written_anew(twins: Twins, asked: Asked, tmp_path: Path) -> None:
    """A flipped bit in a column that this question does not read is seen by another one."""
    index = tmp_path / "index.parquet"
    assert run(["history", "index", "--path", str(twins.a), "--output", str(index)]) == 0
    whole = index.read_bytes()
    flipped = [bytearray(whole) for _ in range(8)]
    for number, data in enumerate(flipped):
        data[len(data) * (2 * number + 1) // 16] ^= 0x10
    command = ["history", "find", "all", "--json", "--path", str(twins.a)]
    asked.capsys.readouterr()
    assert run(command) == 0
    plain = asked.capsys.readouterr().out
    anew = []
    for damaged in (whole[: len(whole) * 9 // 10], *flipped):
        index.write_bytes(bytes(damaged))
        assert run([*command, "--index", str(index)]) == 0
        told = asked.capsys.readouterr()
        assert told.out == plain
        anew.append("this command writes it anew" in told.err)
        assert run([*command, "--index", str(index)]) == 0
        assert asked.capsys.readouterr().out == plain
    assert anew[0] and any(anew[1:])


def test_an_index_of_another_cluster_is_refused(twins: Twins, asked: Asked, tmp_path: Path) -> None:
    index = tmp_path / "index.parquet"
    assert run(["history", "index", "--path", str(twins.a), "--output", str(index)]) == 0
    table = pq.read_table(index)
    metadata = {**table.schema.metadata, b"walkeeper.system_identifier": b"17"}
    pq.write_table(table.replace_schema_metadata(metadata), index)
    command = ["history", "find", "all", "--path", str(twins.a), "--index", str(index)]
    assert run(command) == 1
    assert "an index of cluster 17, but the WAL is of" in asked.capsys.readouterr().err
