"""`walkeeper pager` beside a real cluster, as an operator would run it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest

from tests.pager.pages import masked
from tests.support.cluster import Cluster, Daemon, lsn_of, walkeeper
from tests.support.postgres_server import PostgresServer, program, server_environment
from tests.support.seeds import drawn_seed
from tests.support.standbys import fail_over, standby_of
from tests.support.waiting import LIMIT_S, wait_until
from walkeeper_common.lsn import WAL_PAGE_BYTES, Lsn
from walkeeper_pager.page_names import NoSuchPage, NotReplayed, PageError
from walkeeper_pager.page_requests import TIMEOUT_S_MAX, fetch_page, fetch_status

pytestmark = [pytest.mark.postgres, pytest.mark.filterwarnings("ignore::ResourceWarning")]

SEGMENT = "--wal-segsize=1"
HISTORY = "3MB"
MEMORY_MB_MAX = 500
TABLES = ("pgbench_accounts", "pgbench_tellers", "pgbench_branches", "pgbench_history")
INDEX = "pgbench_accounts_pkey"
WAITERS = 60


def one_row(
    sql: psycopg.Connection[Any], query: LiteralString, values: tuple[Any, ...]
) -> tuple[Any, ...]:
    row: tuple[Any, ...] | None = sql.execute(query, values).fetchone()
    assert row is not None, query
    return row


class Pages:
    """A pager of a cluster, and what its primary says of the same pages."""

    def __init__(self, cluster: Cluster, base: Path) -> None:
        self.cluster, self.base = cluster, base
        self.daemon = self.new_daemon("pager", cluster.addresses)

    def new_daemon(self, name: str, addresses: str) -> Daemon:
        where = self.cluster.directory
        return Daemon(
            name,
            (
                *("pager", "--safekeepers", addresses, "--base", str(self.base)),
                *("--data-dir", str(where / name), "--history", HISTORY, "--http", "127.0.0.1:0"),
            ),
            where / f"{name}.log",
        )

    @property
    def address(self) -> tuple[str, int]:
        line = next(x for x in self.daemon.output().splitlines() if x.startswith("ready: "))
        host, _, port = line.split()[-1].rpartition(":")
        return host, int(port)

    def compare(self, sql: psycopg.Connection[Any], relation: str, block: int) -> str:
        """Compare at an LSN at which the server's page is as it was read.

        Return the pager's answer.
        """
        file, before, page = one_row(
            sql,
            "SELECT pg_relation_filepath(%s::regclass), pg_current_wal_insert_lsn()::text, "
            "get_raw_page(%s, %s)",
            (relation, relation, block),
        )
        changed = int.from_bytes(page[:4], "little") << 32 | int.from_bytes(page[4:8], "little")
        lsn = Lsn(max(lsn_of(before), changed))
        sql.execute("SELECT pg_switch_wal()" if block % 50 == 7 else "SELECT txid_current()")
        try:
            found, at = fetch_page(self.address, file, block, lsn=lsn, timeout_s=LIMIT_S)
        except NotReplayed:
            return "refused"
        except PageError as error:
            assert self.daemon.is_running, f"{error}\n{self.daemon.output()}"
            assert isinstance(error, NoSuchPage), error
            assert not any(page), f"{relation} {block} at {lsn}"
            return "empty"
        assert lsn - 40 <= at <= lsn
        assert masked(found, block) == masked(page, block), f"{relation} {block} at {lsn}"
        return "equal"


@pytest.fixture(scope="module")
def pages() -> Iterator[Pages]:
    """History is short, so that the horizon moves all the time."""
    with (
        PostgresServer.create(initdb_options=[SEGMENT]) as server,
        Cluster.create(server) as cluster,
    ):
        server.sql("CREATE EXTENSION pageinspect")
        subprocess.run(
            [program("pgbench"), "-iq", "-s", "1", server.dsn()],
            env=server_environment(), check=True, capture_output=True, timeout=LIMIT_S,
        )  # fmt: skip
        backup = server.base_backup()
        made = Pages(cluster, backup.data)
        try:
            made.daemon.start()
            yield made
        finally:
            made.daemon.kill()
            backup.delete()


def pgbench(pages: Pages, seconds: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [program("pgbench"), "-n", "-c", "2", "-T", str(seconds), pages.cluster.primary.dsn()],
        env=server_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.mark.soak
def test_pages_are_the_primarys_while_pgbench_runs_and_safekeepers_are_killed(
    pages: Pages,
) -> None:
    draw = random.Random(drawn_seed())
    cluster, answers = pages.cluster, Counter[str]()
    followed = set()
    load = pgbench(pages, 60)
    try:
        with cluster.primary.connect() as sql:

            def compare_some(count: int) -> None:
                for _ in range(count):
                    relation = draw.choice((*TABLES, INDEX))
                    query = "SELECT pg_relation_size(%s::regclass) / 8192"
                    block = draw.randrange(one_row(sql, query, (relation,))[0])
                    kind = "index" if relation == INDEX else "heap"
                    answers[f"{kind} {pages.compare(sql, relation, block)}"] += 1

            wait_until(
                lambda: cluster.primary.sql("SELECT count(*) FROM pgbench_history") > 500, 60
            )
            compare_some(40)
            for safekeeper in cluster.safekeepers:
                followed.add(fetch_status(pages.address)["safekeeper"])
                safekeeper.kill()
                compare_some(30)
                safekeeper.start()
            pages.daemon.kill()
            compare_later = pages.cluster.primary.sql("SELECT pg_current_wal_insert_lsn()")
            pages.daemon.start()
            wait_until(lambda: applied(pages) >= lsn_of(compare_later))
            compare_some(40)
    finally:
        load.terminate()
        load.wait(LIMIT_S)
    sys.stderr.write(f"{dict(answers)}\n")
    assert answers["heap equal"] > 80, answers
    assert answers["heap refused"] == 0, answers
    assert len(followed - {None}) > 1, f"it moved from one safekeeper to another: {followed}"
    assert pages.daemon.most_memory_mb() < MEMORY_MB_MAX


def applied(pages: Pages) -> int:
    return lsn_of(str(fetch_status(pages.address)["applied_lsn"]))


def test_files_that_are_made_emptied_and_dropped_are_so_in_the_pager(pages: Pages) -> None:
    primary = pages.cluster.primary
    statements = (
        "CREATE TABLE past (id int, t text)",
        "INSERT INTO past SELECT i, repeat('p', 500) FROM generate_series(1, 200) i",
    )
    primary.sql(*statements)
    file = primary.sql("SELECT pg_relation_filepath('past')")
    full = lsn_now(pages)
    expected = bytes(primary.sql("SELECT get_raw_page('past', 3)", dbname="postgres"))
    primary.sql("DELETE FROM past WHERE id > 20", "VACUUM past")
    cut = lsn_now(pages)
    primary.sql("DROP TABLE past")
    dropped = lsn_now(pages)
    found, _ = fetch_page(pages.address, file, 3, lsn=full, timeout_s=LIMIT_S)
    assert masked(found, 3) == masked(expected, 3)
    assert fetch_page(pages.address, file, 0, lsn=cut, timeout_s=LIMIT_S)
    for block, lsn in ((3, cut), (0, dropped), (99, full)):
        with pytest.raises(NoSuchPage, match=f"block {block} of .* is not there as of {lsn}"):
            fetch_page(pages.address, file, block, lsn=lsn, timeout_s=LIMIT_S)


def lsn_now(pages: Pages) -> Lsn:
    """Return the LSN of committed WAL; a transaction after it lets the pager reach it."""
    primary = pages.cluster.primary
    lsn = Lsn(lsn_of(primary.sql("SELECT pg_current_wal_insert_lsn()")))
    primary.sql("SELECT txid_current()")
    return lsn


def test_the_command_gets_a_page_or_says_why_not(pages: Pages, tmp_path: Path) -> None:
    at = ("--at", f"127.0.0.1:{pages.address[1]}")
    catalog = pages.cluster.primary.sql("SELECT pg_relation_filepath('pg_class')")
    done = walkeeper("pager", "get", catalog, "0", *at, "-o", str(tmp_path / "page"))
    assert done.returncode == 0, done
    assert len((tmp_path / "page").read_bytes()) == 8192
    wait_until(lambda: fetch_status(pages.address)["safekeeper"])  # it may have just started
    status = json.loads(walkeeper("pager", "status", *at, "--json").stdout)
    assert status["consistent"] and status["safekeeper"] in pages.cluster.addresses

    def is_followed() -> bool:
        lines = pages.cluster.status()["safekeepers"]
        (followed,) = [line for line in lines if line["address"] == status["safekeeper"]]
        return "walkeeper pager" in [each["application_name"] for each in followed["standbys"]]

    wait_until(is_followed)
    for arguments, said in (
        ((catalog, "0", "--lsn", "0/1000028"), "is before the history that is kept, which begins"),
        ((catalog, "0", "--lsn", "F/0", "--timeout", "100ms"), "F/0 is still to come: applied up"),
        ((catalog, "0", "--fork", "vm"), "'vm' is not one of 'main', 'init'"),
        (("base/5/1", "7"), "block 7 of 1663/5/1 is not there as of"),
        (("accounts", "0"), "'accounts' is not a relation's file: tablespace/database/relfile"),
    ):
        done = walkeeper("pager", "get", *arguments, *at)
        assert done.returncode in (1, 2), done
        assert said in done.stderr, done
    assert pages.daemon.terminate() == 0
    done = walkeeper("pager", "status", *at)
    assert done.returncode == 1
    assert "is a pager there?" in done.stderr
    pages.daemon.start()


def test_requests_for_what_is_still_to_come_hold_up_neither_others_nor_the_end(
    pages: Pages,
) -> None:
    catalog = pages.cluster.primary.sql("SELECT pg_relation_filepath('pg_class')")
    now = lsn_of(pages.cluster.primary.sql("SELECT pg_current_wal_insert_lsn()"))
    later = Lsn((now | WAL_PAGE_BYTES - 1) + (1 << 20))  # behind a page's header it would be moved
    with ThreadPoolExecutor(WAITERS) as threads:
        waiting = [
            threads.submit(
                fetch_page, pages.address, catalog, 0, lsn=later, timeout_s=TIMEOUT_S_MAX
            )
            for _ in range(WAITERS)
        ]
        for _ in range(20):
            assert len(fetch_page(pages.address, catalog, 0)[0]) == 8192
        assert not any(one.done() for one in waiting)
        pages.cluster.primary.sql(
            "SELECT pg_logical_emit_message(false, '', repeat('x', 1100000))",
            "SELECT pg_switch_wal()",
        )
        assert {one.result()[1] for one in waiting} == {later}
        far = Lsn(later + (1 << 30))
        waiting = [
            threads.submit(fetch_page, pages.address, catalog, 0, lsn=far, timeout_s=TIMEOUT_S_MAX)
            for _ in range(WAITERS)
        ]
        wait_until(lambda: fetch_status(pages.address)["waiting"] == WAITERS)
        begun_s = time.monotonic()
        assert pages.daemon.terminate() == 0
        assert time.monotonic() - begun_s < TIMEOUT_S_MAX / 2, "they hold it up"
        for one in waiting:
            with pytest.raises(PageError):
                one.result()
    pages.daemon.start()


def test_another_base_or_a_second_pager_is_refused(pages: Pages) -> None:
    second = pages.new_daemon("pager", pages.cluster.addresses)
    second.start(wait=False)
    assert second.ended() == 1
    assert "another pager is running in" in second.output()
    third = pages.new_daemon("pager", pages.cluster.addresses)
    pages.daemon.terminate()
    other = pages.cluster.primary.base_backup()
    try:
        third.start("--base", str(other.data), wait=False)
        assert third.ended() == 1
        assert "another base backup than the one this data directory was begun" in third.output()
    finally:
        other.delete()
    pages.daemon.start()


@pytest.mark.soak
def test_the_pager_follows_a_promoted_standby_onto_its_timeline() -> None:
    rows = "SELECT i, repeat('t', 90) FROM generate_series(%d, %d) i"
    with PostgresServer.create() as primary, Cluster.create(primary) as cluster:
        primary.sql("CREATE EXTENSION pageinspect", "CREATE TABLE t (id int, t text)")
        backup = primary.base_backup()
        pages = Pages(cluster, backup.data)
        try:
            with standby_of(primary, cluster.ports[0]) as standby:
                primary.sql(f"INSERT INTO t {rows % (1, 5000)}")
                pages.daemon.start()
                assert lsn_of(primary.sql("SELECT pg_current_wal_flush_lsn()")) > 0
                primary.kill()
                fail_over(cluster, standby)
                cluster.proposer.kill()
                standby.sql(f"INSERT INTO t {rows % (5001, 6000)}", "UPDATE t SET id = -id")
                with standby.connect() as sql:
                    blocks = standby.sql("SELECT pg_relation_size('t') / 8192")
                    answers = {pages.compare(sql, "t", block) for block in range(0, blocks, 5)}
                    pages.daemon.kill()
                    pages.daemon.start()
                    answers |= {pages.compare(sql, "t", block) for block in range(1, blocks, 5)}
                assert answers == {"equal"}
                assert fetch_status(pages.address)["timeline"] == 2
        finally:
            pages.daemon.kill()
            backup.delete()
