"""A standby is promoted and its proposer takes over: timelines, receivers, the deposed primary.

The standbys are stock ones, fed by safekeepers alone; the receivers are pg_receivewal and a
standby behind a standby. docs/failover.md is the operator's text of what is done here.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, lsn_of
from tests.support.journal import Journal
from tests.support.postgres_server import PostgresServer, program
from tests.support.receivers import identified, pg_receivewal, segments_in
from tests.support.restore_installation import installed
from tests.support.standbys import fail_over, feed_from, rewind, standby_of, wait_replayed
from tests.support.waiting import wait_until
from tests.with_postgres.conftest import Figure
from walkeeper_admin import replaying
from walkeeper_common.errors import Refused
from walkeeper_common.lsn import Lsn

pytestmark = pytest.mark.postgres


def timeline_served(cluster: Cluster, number: int) -> int:
    """Return the timeline that this safekeeper serves to a standby."""
    return int(identified(cluster, number)[1])


def test_a_promoted_standby_takes_over_and_the_old_primary_returns_as_a_standby(
    primary: PostgresServer, figure: Figure
) -> None:
    primary.configure({"wal_log_hints": "on", "wal_keep_size": "64MB"})
    primary.restart()
    with Cluster.create(primary) as cluster, standby_of(primary, cluster.ports[0]) as standby:
        waiting = cluster.new_proposer("waiting", "--follow", dsn=standby.dsn())
        waiting.start()
        assert "waiting for the promotion of its server" in waiting.output()
        term = cluster.status()["cluster"]["term"]
        with Journal(primary) as journal:
            journal.wait_for_more(300)
            assert cluster.status()["cluster"]["term"] == term, "the waiting one disturbs nobody"
            primary.kill()
            began_s = time.monotonic()
        end = Lsn(lsn_of(cluster.settle("--seal")["consensus_lsn"]))
        wait_replayed(standby, end)
        assert "has replayed up to" in _refused_to_promote(standby, end + 1)
        standby.promote()
        assert "is no standby" in _refused_to_promote(standby, end)
        with Journal(standby) as later:
            later.wait_for_more(1)
            figure(
                "from the loss of the primary to the first commit on the new one",
                (time.monotonic() - began_s),
            )
            later.wait_for_more(100)
        assert not journal.lost_in(standby)
        wait_until(lambda: {timeline_served(cluster, n) for n in (1, 2, 3)} == {2})
        file = (standby.data / "pg_wal" / "00000002.history").read_bytes()
        for number in (1, 2, 3):
            assert (cluster.wal_dir(number) / "00000002.history").read_bytes() == file
        _refused_until_it_is_rewound(cluster, primary, standby)
        with Journal(standby) as last:
            last.wait_for_more(50)
        end = Lsn(lsn_of(standby.sql("SELECT pg_current_wal_flush_lsn()")))
        wait_replayed(primary, end)
        assert not journal.lost_in(primary) and not last.lost_in(primary)


def _refused_to_promote(server: PostgresServer, end: Lsn) -> str:
    """Return the text of the refusal of `settle --replayed-by`."""
    with pytest.raises(Refused) as refused:
        asyncio.run(replaying.wait_replayed(server.dsn(), end, timeout_s=0, say=print))
    return str(refused.value)


def _refused_until_it_is_rewound(
    cluster: Cluster, old: PostgresServer, new: PostgresServer
) -> None:
    cluster.proposer.kill()
    old.start()
    with old.connect() as connection:
        connection.execute("SET synchronous_commit = local")  # it is on its own now: WAL forks
        connection.execute("CREATE TABLE of_the_deposed AS SELECT generate_series(1, 1000)")
    cluster.proposer.start(wait=False)
    assert cluster.proposer.ended() == 1
    said = cluster.proposer.output()
    assert "behind a promotion" in said and "pg_rewind --target-pgdata" in said, said
    old.stop("immediate")
    rewind(old, new, cluster.ports[1])
    old.start()
    cluster.proposer.start("--follow")
    assert cluster.proposer.is_running
    fed_by = "SELECT sender_port FROM pg_stat_wal_receiver"
    wait_until(lambda: old.sql(fed_by) == cluster.ports[1])  # else it could be ahead of the log


@pytest.mark.parametrize("how", [pytest.param("dead", marks=pytest.mark.soak), "frozen"])
def test_a_standby_far_behind_gets_every_acknowledged_row(
    cluster: Cluster, primary: PostgresServer, figure: Figure, how: str
) -> None:
    """1000 commits behind, with a primary that is killed, or stands still and goes on later."""
    with standby_of(primary, cluster.ports[2]) as standby:
        standby.stop()
        with Journal(primary, writers=8) as journal:
            journal.wait_for_more(1000)
            if how == "dead":
                primary.kill()
            else:
                primary.signal_all(signal.SIGSTOP)
            began_s = time.monotonic()
            standby.start()
            proposer = fail_over(cluster, standby)
            with Journal(standby) as later:
                later.wait_for_more(1)
                figure(f"{how}: a standby 1000 behind commits after s", time.monotonic() - began_s)
                later.wait_for_more(50)
            if how == "frozen":
                primary.signal_all(signal.SIGCONT)
                assert journal.is_silent_for(3)
                assert cluster.proposer.ended() == 1
            begun_later = [e for e in journal.entries if e.at_s - e.latency_s > began_s]
            assert not begun_later, "the deposed primary gets no commit acknowledged"
            # It may still pass on commits that a quorum had acknowledged to it before it stood
            # still.
            assert len(journal.acknowledged) >= 1000 and not journal.lost_in(standby)
            assert proposer.is_running
            primary.kill()


@pytest.mark.soak
def test_receivers_follow_three_timelines(cluster: Cluster, primary: PostgresServer) -> None:
    """Two promotions; pg_receivewal and a standby behind a standby stay attached throughout."""
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(pg_receivewal(cluster.ports[2]))
        second = stack.enter_context(standby_of(primary, cluster.ports[0]))
        third = stack.enter_context(standby_of(primary, cluster.ports[1]))
        cascading = stack.enter_context(standby_of(primary, third.port))
        journals, server, proposer = [], primary, cluster.proposer
        for successor in (second, third, None):
            with Journal(server, record_bytes=100_000) as journal:
                journal.wait_for_more(200)
                server.kill()
                proposer.kill()
            journals.append(journal)
            for safekeeper in cluster.safekeepers[:1]:  # their recovery reads over the forks
                safekeeper.kill()
                safekeeper.start()
            if successor is not None:
                server, proposer = successor, fail_over(cluster, successor)
                assert not any(journal.lost_in(server) for journal in journals)
        end = lsn_of(cluster.settle()["consensus_lsn"])
        # Behind a primary that is gone, the rest comes through a safekeeper.
        feed_from(cascading, cluster.ports[0])
        cascading.reload()
        wait_replayed(cascading, end)
        assert not any(journal.lost_in(cascading) for journal in journals)
        wait_until(lambda: {timeline_served(cluster, n) for n in (1, 2, 3)} == {3})
        # It rests for 5 s when a stream has ended that had sent more than there is now.
        wait_until(lambda: any(name[:8] == "00000003" for name in segments_in(directory)))
        assert_same_wal(cluster, directory)


def assert_same_wal(cluster: Cluster, received: Path) -> None:
    """Compare pg_receivewal's files of the timelines that are over with every safekeeper's.

    They agree to the last byte, as no byte was sent of a record that the primary did not finish.
    """
    segments = {name: wal for name, wal in segments_in(received).items() if name[:8] < "00000003"}
    assert {name[:8] for name in segments} == {"00000001", "00000002"}
    for number in (1, 2, 3):
        kept = segments_in(cluster.wal_dir(number))
        for name, wal in segments.items():
            assert wal == kept[name], f"{number}: {name}"
        for name in ("00000002.history", "00000003.history"):
            ours, theirs = (cluster.wal_dir(number) / name), received / name
            assert ours.read_bytes() == theirs.read_bytes()


def test_what_one_safekeeper_had_alone_is_kept_beside_its_log(
    cluster: Cluster, primary: PostgresServer
) -> None:
    """The deposed primary showed it to its users; no quorum has it, and nobody is served it."""
    for safekeeper in cluster.safekeepers[1:]:
        safekeeper.kill()
    with primary.connect() as connection:
        connection.execute("SET synchronous_commit = local")
        connection.execute("CREATE TABLE shown (i int)")
        end = lsn_of(primary.sql("SELECT pg_current_wal_flush_lsn()"))
    wait_until(lambda: lsn_of(cluster.flush_lsns().get(1, "0/0")) >= end)
    cluster.proposer.kill()
    cluster.safekeepers[0].kill()
    primary.kill()
    for safekeeper in cluster.safekeepers[1:]:
        safekeeper.start()
    settled = lsn_of(cluster.settle()["consensus_lsn"])
    assert settled < end
    cluster.safekeepers[0].start()
    wait_until(lambda: cluster.settle() and lsn_of(cluster.flush_lsns().get(1, "0/0")) == settled)
    (orphan,) = (cluster.wal_dir(1).parent / "orphans").iterdir()
    line = f"pg_waldump -p orphans/{orphan.name} "
    wait_until(lambda: line in cluster.safekeepers[0].output())
    said = cluster.safekeepers[0].output()
    asked = said.partition(line)[2].splitlines()[0].split()
    ran = subprocess.run(
        [program("pg_waldump"), "-p", orphan, *asked], capture_output=True, text=True, check=False
    )
    assert "COMMIT" in ran.stdout, ran.stdout + ran.stderr


@pytest.mark.parametrize(
    "has_stream",
    [
        pytest.param(True, id="streaming"),
        pytest.param(False, id="restore alone", marks=pytest.mark.soak),
    ],
)
def test_standbys_follow_a_promotion_that_passes_over_a_number(
    cluster: Cluster, primary: PostgresServer, has_stream: bool
) -> None:
    """PostgreSQL takes the number after the newest history file that it finds."""
    with contextlib.ExitStack() as stack:
        installation = stack.enter_context(installed())
        promoted, follower = (
            stack.enter_context(standby_of(primary, port)) for port in cluster.ports[:2]
        )
        if not has_stream:
            options = f"--safekeepers {cluster.addresses}"
            restore = f"{installation.script} restore {options} %f %p"
            follower.configure({"restore_command": restore, "primary_conninfo": ""})
            follower.restart()
        primary.sql("CREATE TABLE t (i int)")
        for number in (2, 3):
            path = promoted.data / "pg_wal" / f"{number:08X}.history"
            promoted.sql(f"COPY (SELECT '# taken elsewhere') TO '{path}'")
        primary.kill()
        fail_over(cluster, promoted)
        promoted.sql("INSERT INTO t VALUES (1)", "CHECKPOINT", "SELECT pg_switch_wal()")
        assert promoted.sql("SELECT timeline_id FROM pg_control_checkpoint()") == 4
        end = lsn_of(promoted.sql("SELECT pg_current_wal_flush_lsn()::text"))
        if has_stream:
            wait_replayed(follower, end)
        wait_until(lambda: follower.sql("SELECT count(*) FROM t") == 1)
        said = follower.log_text().replace("FATAL:  terminating walreceiver process due to", "")
        assert "FATAL" not in said, said[-3000:]
