"""Any part dies or freezes at any time, several at once: nothing acknowledged is ever lost.

Prints its seed; WALKEEPER_TEST_SEED repeats a schedule (the machine's timing stays its own), and
WALKEEPER_BIG_TESTS=1 makes it long.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Callable

import pytest

from tests.support.cluster import Cluster, lsn_of
from tests.support.journal import Journal
from tests.support.postgres_server import PostgresServer
from tests.support.recovery import assembled_wal, recovered
from tests.support.seeds import drawn_seed
from tests.support.segment_files import assert_same_wal
from tests.support.waiting import wait_until

pytestmark = pytest.mark.postgres

ROUNDS = 150 if os.environ.get("WALKEEPER_BIG_TESTS") == "1" else 8
FAULTS_MAX = 4
RECORD_BYTES = 5 << 19  # over three or four segments
PAUSE_S_MAX = 0.4


class Faults:
    """Breaks something; `heal` makes all well again. Every fault may hit what is broken already."""

    def __init__(self, cluster: Cluster, chance: random.Random) -> None:
        self.cluster, self.chance = cluster, chance
        self.done: list[str] = []

    def one(self) -> None:
        faults: list[Callable[[], None]] = [
            *(3 * [self.kill_safekeeper]),
            self.stop_safekeeper,
            *(2 * [self.freeze_safekeeper]),
            *(2 * [self.start_safekeeper]),
            *(2 * [self.kill_proposer]),
            self.take_over_from_a_frozen_proposer,
            self.kill_primary,
            self.stop_primary,
            self.settle,
            self.kill_everything,
        ]
        fault = self.chance.choice(faults)
        self.done.append(fault.__name__)
        fault()

    def kill_safekeeper(self) -> None:
        self.chance.choice(self.cluster.safekeepers).kill()

    def stop_safekeeper(self) -> None:
        victim = self.chance.choice(self.cluster.safekeepers)
        if victim.is_running:
            victim.signal(signal.SIGCONT)
            assert victim.terminate() == 0, victim.output()

    def freeze_safekeeper(self) -> None:
        victim = self.chance.choice(self.cluster.safekeepers)
        if victim.is_running:
            victim.signal(signal.SIGSTOP)

    def start_safekeeper(self) -> None:
        for safekeeper in self.cluster.safekeepers:
            if safekeeper.is_running:
                safekeeper.signal(signal.SIGCONT)
            else:
                safekeeper.start()

    def kill_proposer(self) -> None:
        self.cluster.proposer.kill()
        self.cluster.proposer.start("--take-over", wait=False)

    def take_over_from_a_frozen_proposer(self) -> None:
        old = self.cluster.proposer
        if old.is_running:
            old.signal(signal.SIGSTOP)
        successor = self.cluster.new_proposer(f"proposer{len(self.cluster.proposers)}")
        successor.start("--take-over", wait=False)
        self.cluster.proposer = successor

    def kill_primary(self) -> None:
        self.cluster.primary.kill()
        self.cluster.primary.start()

    def stop_primary(self) -> None:
        self.cluster.primary.stop("immediate")
        self.cluster.primary.start()

    def settle(self) -> None:
        self.cluster.try_command("settle", "--timeout", "3s")

    def kill_everything(self) -> None:
        for daemon in [*self.cluster.safekeepers, self.cluster.proposer]:
            daemon.kill()
        self.kill_primary()

    def heal(self) -> None:
        self.start_safekeeper()
        for old in self.cluster.proposers:
            if old is not self.cluster.proposer and old.is_running:
                old.signal(signal.SIGCONT)
        proposer = self.cluster.proposer
        if proposer.is_running:
            proposer.signal(signal.SIGCONT)

    def supervise(self) -> None:
        """Start a proposer again that was deposed and has ended, as systemd would.

        A proposer that was frozen at its start may have taken over instead.
        """
        proposer = self.cluster.proposer
        if proposer.is_running:
            return
        assert "Traceback" not in proposer.output()
        others = [other for other in self.cluster.proposers if other.is_running]
        if others:
            self.cluster.proposer = others[0]
        else:
            proposer.start(wait=False)

    def heal_until(self, journal: Journal, count: int) -> None:
        """Heal until so many more commits are acknowledged and each deposed proposer has ended."""
        self.heal()
        enough = len(journal.entries) + count

        def recovered() -> bool:
            self.supervise()
            olds = [p for p in self.cluster.proposers if p is not self.cluster.proposer]
            return len(journal.entries) >= enough and not any(p.is_running for p in olds)

        wait_until(recovered)


@pytest.fixture
def keeps_all_wal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is rebuilt from a backup made before the first kill: many gigabytes ago."""
    monkeypatch.setenv("WALKEEPER_WAL_KEEP_SIZE", "1000GB")


@pytest.mark.soak
@pytest.mark.usefixtures("keeps_all_wal")
def test_no_acknowledged_row_is_lost_when_parts_die_at_random(
    cluster: Cluster, primary: PostgresServer
) -> None:
    seed = drawn_seed()
    chance = random.Random(seed)
    faults = Faults(cluster, chance)
    backup = primary.base_backup()
    try:
        with Journal(primary, record_bytes=RECORD_BYTES) as journal:
            for number in range(ROUNDS):
                faults.done.append(f"round {number}:")
                for _ in range(chance.randint(1, FAULTS_MAX)):
                    journal.goes_on_for(chance.uniform(0, PAUSE_S_MAX))
                    faults.one()
                faults.heal_until(journal, 20)
        faults.supervise()
        end = cluster.wait_all_equal()
        assert not journal.lost_in(primary)
        for number in (1, 2, 3):
            assert assert_same_wal(primary.data / "pg_wal", cluster.wal_dir(number), lsn_of(end))
        pair = chance.sample([1, 2, 3], 2)
        wal = assembled_wal(cluster, pair)
        with recovered(backup, wal) as server:
            wait_until(lambda: server.sql("SELECT NOT pg_is_in_recovery()"))
            assert not journal.lost_in(server)
        shutil.rmtree(wal)
    except BaseException as error:
        error.add_note(f"WALKEEPER_TEST_SEED={seed}: {' '.join(faults.done)}")
        error.add_note(f"the proposer said: {cluster.proposer.output()[-3000:]}")
        raise
    finally:
        backup.delete()
