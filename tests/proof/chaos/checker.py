"""Verdicts of the fault runner: no promised data is gone.

    check_served(server, loads)            every acknowledged id, the sums, the indexes
    check_segments(cluster)                safekeepers hold the same bytes up to commit_lsn
    check_standby(standby, server, loads)  its rows are a prefix of the restored server's
    check_received(standby, settled)       it received no WAL that was truncated later
    PrimaryIsLost(cluster, loads).play()   all checks, on servers restored from each two safekeepers

Unacknowledged data (a broken connection, a cancelled wait) may be there or not, but whole.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path

from tests.proof.chaos.checked_loads import ACCOUNTS, BALANCE, BALANCES, SNAPSHOT, Loads
from tests.proof.chaos.faulted_cluster import NUMBERS, SEGMENT_BYTES, ChaosCluster
from tests.proof.chaos.verdicts import Violation
from tests.support.cluster import lsn_of
from tests.support.journal import IDS_PER_WRITER, Journal
from tests.support.postgres_server import PostgresServer
from tests.support.recovery import assembled_wal, recovered
from tests.support.segment_files import assert_same_wal
from tests.support.waiting import wait_until

SHOWN_MAX = 5
LONG_TRANSACTIONS = "SELECT id, count(*) FROM long_transactions GROUP BY id"
RECOVERY_S = 120.0
SETTLE_TRIES = 3
INDEXED = ("journal", "transfers", "accounts", "large_records")
INDEXES = f"""
SELECT count(bt_index_check(c.oid, true)) FROM pg_index i JOIN pg_class c ON c.oid = indexrelid
WHERE c.relam = (SELECT oid FROM pg_am WHERE amname = 'btree') AND c.relpersistence = 'p'
    AND i.indrelid::regclass::text IN {INDEXED}
"""


def shown(ids: Iterable[int]) -> str:
    some = sorted(ids)
    more = f" and {len(some) - SHOWN_MAX} more" if len(some) > SHOWN_MAX else ""
    return f"{some[:SHOWN_MAX]}{more}"


def check_served(server: PostgresServer, loads: Loads, where: str) -> None:
    """Check a server that accepts connections; the Violation names the missing rows."""
    for journal in loads.journals:
        promised = journal.acknowledged  # first: there may be more when the rows are read
        check_ids(journal, promised, journal.ids_in(server), where)
    check_bank(server, where)
    checked = server.sql(INDEXES)  # raises for a damaged one
    assert checked == len(INDEXED), f"{checked} of the indexes of {INDEXED} were checked"


def check_long_transactions(
    server: PostgresServer, promised: Mapping[int, int], where: str
) -> None:
    """Check that each acknowledged long transaction has all of its rows."""
    if not promised:
        return
    found = dict(server.rows(LONG_TRANSACTIONS))
    for each, rows in promised.items():
        if found.get(each) != rows:
            raise Violation(f"{where}: long transaction {each} has {found.get(each)} of {rows}")


def check_ids(journal: Journal, promised: set[int], found: set[int], where: str) -> None:
    """Check that every acknowledged id is there, and no id that no writer has tried."""
    if lost := promised - found:
        raise Violation(f"{where}: {journal.table}: {len(lost)} acknowledged lost: {shown(lost)}")
    if strange := [each for each in found if not journal.was_tried(each)]:
        raise Violation(f"{where}: {journal.table}: nobody wrote {shown(strange)}")


def check_bank(server: PostgresServer, where: str) -> None:
    total = server.rows(SNAPSHOT)[0]
    if total != (ACCOUNTS, ACCOUNTS * BALANCE):
        raise Violation(f"{where}: accounts and their sum are {total}")
    for account, balance, due in server.rows(BALANCES):
        if balance != due:
            raise Violation(f"{where}: account {account} has {balance}, its transfers say {due}")


def check_snapshots(loads: Loads) -> None:
    for snapshots in loads.snapshots:
        if snapshots.wrong:
            raise Violation(f"a snapshot's sum is wrong: {snapshots.wrong[:SHOWN_MAX]}")


def check_segments(cluster: ChaosCluster, *, primary: Path | None) -> int:
    """Compare each pair's segments and the primary's byte for byte; return how many."""
    statuses = [cluster.log_status(number) for number in NUMBERS]
    assert None not in statuses, f"{statuses=}"
    end = min(lsn_of(status["commit_lsn"]) for status in statuses if status)
    folders = [cluster.wal_dir(number) for number in NUMBERS] + ([primary] if primary else [])
    compared = 0
    for one, other in combinations(folders, 2):
        try:
            compared += assert_same_wal(one, other, end, SEGMENT_BYTES)
        except AssertionError as error:
            raise Violation(f"forked below {end:X}: {error}") from error
    if not compared:
        raise Violation(f"committed everywhere is only what lies below {end:X}: no whole segment")
    return compared


def check_standby(standby: PostgresServer, restored: PostgresServer, loads: Loads) -> None:
    """Check that the standby has each writer's first rows, in order and without a gap."""
    for journal in loads.journals:
        truth, found = by_writer(journal.ids_in(restored)), by_writer(journal.ids_in(standby))
        for writer, ids in found.items():
            if ids != truth.get(writer, [])[: len(ids)]:
                wrong = set(ids) ^ set(truth.get(writer, [])[: len(ids)])
                raise Violation(f"standby: {journal.table} is no prefix: {shown(wrong)}")
    check_bank(standby, "standby")


def check_received(standby: PostgresServer, settled: int) -> None:
    """Check that it was never sent more than the settled log has (R13)."""
    received = standby.sql("SELECT pg_last_wal_receive_lsn()")
    if received is not None and lsn_of(received) > settled:
        raise Violation(f"standby: it was sent WAL up to {received}, settled is {settled:X}")


def by_writer(ids: Iterable[int]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for each in sorted(ids):
        found.setdefault(each // IDS_PER_WRITER, []).append(each)
    return found


class PrimaryIsLost:
    """The loss of the primary's directory and its proposer, while every safekeeper loses power.

    An older backup is brought up to date from each two safekeepers and checked. From all three it
    becomes the new primary.
    """

    def __init__(self, cluster: ChaosCluster, loads: Loads) -> None:
        self._cluster, self._loads = cluster, loads
        self._backup = cluster.primary.base_backup()
        self.restores, self.segments, self.wal_bytes = 0, 0, 0
        self._settled_lsn = 0
        self._began_lsn = self._primary_lsn()

    def _primary_lsn(self) -> int:
        return lsn_of(self._cluster.primary.sql("SELECT pg_current_wal_insert_lsn()"))

    @property
    def wal_since_backup(self) -> int:
        """Must stay below what safekeepers keep."""
        return self._primary_lsn() - self._began_lsn

    def play(self) -> None:
        """Destroy the primary while the loads go on; every safekeeper runs before and after."""
        cluster = self._cluster
        cluster.cut_power(NUMBERS)
        cluster.primary.kill()
        cluster.proposer.kill()
        cluster.restore_power(NUMBERS)
        for number in NUMBERS:
            self._wait_for_log(number)
        self.segments += check_segments(cluster, primary=cluster.primary.data / "pg_wal")
        shutil.rmtree(cluster.primary.data)
        for pair in combinations(NUMBERS, 2):
            self.check_pair(pair)
        check_snapshots(self._loads)
        self.wal_bytes += self._settled_lsn - self._began_lsn

    def _wait_for_log(self, number: int) -> None:
        """Wait until the safekeeper opens its log: no fault takes a disk away."""
        keeper = self._cluster.safekeepers[number - 1]
        wait_until(lambda: self._cluster.log_status(number) or not keeper.is_running, RECOVERY_S)
        if not keeper.is_running:
            raise Violation(f"{keeper.name} does not open its log: {keeper.output()[-1000:]}")

    def go_on(self) -> None:
        """Go on with a primary made from the safekeepers' WAL, and a newer backup."""
        cluster = self._cluster
        self.settled(NUMBERS)
        wal = assembled_wal(cluster, NUMBERS)
        cluster.rebuild_primary(self._backup, wal)
        shutil.rmtree(wal)
        cluster.proposer.start(wait=False)
        self._take_backup()

    def renew_backup(self) -> None:
        """Take a newer backup. The log of a newcomer does not reach back to the one before."""
        self.wal_bytes += self._primary_lsn() - self._began_lsn
        self._take_backup()

    def _take_backup(self) -> None:
        old, self._backup = self._backup, self._cluster.primary.base_backup()
        old.delete()
        self._began_lsn = self._primary_lsn()

    def check_pair(self, pair: Sequence[int]) -> None:
        cluster = self._cluster
        absent = next(s for n, s in enumerate(cluster.safekeepers, 1) if n not in pair)
        absent.kill()
        settled = self.settled(pair)
        where = f"restored from safekeepers {pair[0]} and {pair[1]}"
        if settled < self._settled_lsn:
            raise Violation(f"{where}: they settle at {settled:X}, below {self._settled_lsn:X}")
        self._settled_lsn = settled
        wal = assembled_wal(cluster, pair)
        with recovered(self._backup, wal) as server:
            wait_until(lambda: server.sql("SELECT NOT pg_is_in_recovery()"), RECOVERY_S)
            check_served(server, self._loads, where)
            check_long_transactions(server, cluster.long_transactions, where)
            check_standby(cluster.standby, server, self._loads)
            check_received(cluster.standby, settled)
        shutil.rmtree(wal)
        self.restores += 1
        absent.start()

    def settled(self, pair: Sequence[int]) -> int:
        """Return the end of the log, which two of three must always be able to settle."""
        said: list[str] = []
        for _ in range(SETTLE_TRIES):
            try:
                return lsn_of(self._cluster.settle()["lsn"])
            except (AssertionError, subprocess.TimeoutExpired) as error:
                said.append(str(error))
        states = [self._cluster.log_status(number) for number in pair]
        raise Violation(f"safekeepers {pair} do not settle: {said[-1]}; {states}")

    def close(self) -> None:
        self._backup.delete()
