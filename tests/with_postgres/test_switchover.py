"""`walkeeper switchover`: a planned hand-over loses no commit, and a refusal changes nothing."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from tests.support.cluster import Cluster, lsn_of, walkeeper
from tests.support.journal import Journal
from tests.support.postgres_server import PostgresServer, program, server_user
from tests.support.standbys import feed_from, standby_of, wait_replayed
from tests.with_postgres.conftest import Figure
from walkeeper_admin.switchover import LAG_BYTES_MAX, StandbyState, reason_against
from walkeeper_common.lsn import Lsn

END = Lsn(10 << 30)
READY = StandbyState(True, END, "FIRST 1 (walkeeper)", ("walkeeper_follow",))


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (READY, None),
        (replace(READY, replayed_lsn=Lsn(END - LAG_BYTES_MAX)), None),
        (replace(READY, replayed_lsn=Lsn(END - LAG_BYTES_MAX - 1)), "64 MB to replay"),
        (replace(READY, in_recovery=False), "is no standby"),
        (replace(READY, held_back="its replay is paused: x"), "replays nothing for now: its repl"),
        (replace(READY, followers=()), "walkeeper proposer --follow"),
        (
            replace(READY, standby_names="", followers=("walkeeper_b_follow",)),
            "synchronous_standby_names = 'FIRST 1 (walkeeper_b)'",
        ),
    ],
)
def test_a_standby_that_cannot_take_over_at_once_is_refused(
    state: StandbyState, text: str | None
) -> None:
    reason = reason_against(state, END)
    assert reason == text if text is None else text in str(reason)


def stop_of(server: PostgresServer) -> str:
    """Return a shell command that stops the server cleanly."""
    user = server_user()
    words = [*(("runuser", "-u", user, "--") if user else ()), program("pg_ctl")]
    return shlex.join([*words, "-D", str(server.data), "-m", "fast", "-w", "stop"])


def switchover(
    cluster: Cluster, primary: PostgresServer, standby: PostgresServer, stop: str
) -> tuple[int, str]:
    where = ("--safekeepers", cluster.addresses, "--primary", primary.dsn())
    done = walkeeper("switchover", *where, "--standby", standby.dsn(), "--stop", stop)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.postgres
def test_commits_go_on_at_the_standby_and_the_old_primary_comes_back_without_a_rewind(
    cluster: Cluster, primary: PostgresServer, figure: Figure
) -> None:
    with standby_of(primary, cluster.ports[0]) as standby:
        waiting = cluster.new_proposer("waiting", "--follow", dsn=standby.dsn())
        waiting.start()
        with Journal(primary) as journal:
            journal.wait_for_more(300)
            code, said = switchover(cluster, primary, standby, stop_of(primary))
        assert code == 0, said + waiting.output()
        assert "switched over at" in said and "to timeline 2" in said
        figure("seconds without commits", float(said.split("possible for ")[1].split(" s")[0]))
        assert not primary.is_running and not journal.lost_in(standby)
        with Journal(standby) as later:
            later.wait_for_more(50)
        feed_from(primary, cluster.ports[1])
        (primary.data / "standby.signal").touch()
        primary.start()
        wait_replayed(primary, lsn_of(standby.sql("SELECT pg_current_wal_flush_lsn()")))
        assert not journal.lost_in(primary) and not later.lost_in(primary)


@pytest.mark.postgres
def test_a_refusal_leaves_the_primary_at_work(cluster: Cluster, primary: PostgresServer) -> None:
    term = cluster.status()["cluster"]["term"]
    with standby_of(primary, cluster.ports[0]) as standby:
        code, said = switchover(cluster, primary, standby, stop_of(primary))
        assert (
            code == 1 and "walkeeper proposer --follow" in said and "no server was changed" in said
        )
        cluster.new_proposer("waiting", "--follow", dsn=standby.dsn()).start()
        standby.sql("SELECT pg_wal_replay_pause()")
        code, said = switchover(cluster, primary, standby, stop_of(primary))
        assert code == 1 and "replay is paused" in said and "no server was changed" in said, said
        standby.sql("SELECT pg_wal_replay_resume()")
        code, said = switchover(cluster, primary, standby, "echo no way; false")
        assert code == 1 and "still accepts connections" in said and "no way" in said, said
        with Journal(primary) as journal:
            journal.wait_for_more(20)
        assert standby.sql("SELECT pg_is_in_recovery()")
    assert cluster.status()["cluster"]["term"] == term
