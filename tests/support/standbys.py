"""Stock standbys fed by safekeepers, and the steps of a failover (docs/failover.md)."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping

from tests.support.cluster import Cluster, Daemon, lsn_of
from tests.support.postgres_server import PostgresServer, program, run_as_server_user
from tests.support.waiting import LIMIT_S, wait_until

REPLAYED = "SELECT pg_last_wal_replay_lsn()::text"
# The log of a healthy standby of PostgreSQL 13 to 18 from its start on, on one connection. The last
# line is for a standby that feeds another. A statement alone is no error.
HEALTHY = re.compile(
    r"""starting\ PostgreSQL | listening\ on\ | database\ system\ (was\ interrupted|is\ ready)
    | entering\ standby\ mode | redo\ starts\ at | starting\ backup\ recovery
    | completed\ backup\ recovery | consistent\ recovery\ state\ reached
    | started\ streaming\ WAL\ from\ primary | restartpoint\ (starting|complete)
    | recovery\ restart\ point\ at | [Ll]ast\ completed\ transaction
    | connection\ (received|authori)
    | received\ replication\ command | STATEMENT:""",
    re.VERBOSE,
)


@contextlib.contextmanager
def standby_of(
    primary: PostgresServer,
    upstream_port: int,
    password: str = "",
    settings: Mapping[str, str] | None = None,
) -> Iterator[PostgresServer]:
    """Yield a started stock standby of a running primary, fed through `upstream_port` alone."""
    standby = primary.base_backup(settings)
    try:
        feed_from(standby, upstream_port, password)
        (standby.data / "standby.signal").touch()
        standby.start()
        yield standby
    except BaseException as error:
        if not standby.is_running:
            error.add_note(f"the standby {standby.port} is down: {standby.log_text()[-4000:]}")
        raise
    finally:
        standby.delete()


def feed_from(standby: PostgresServer, upstream_port: int, password: str = "") -> None:
    feed = f"host=127.0.0.1 port={upstream_port} user=postgres"
    if password:
        feed += f" password={password}"
    standby.configure({"primary_conninfo": feed, "wal_retrieve_retry_interval": "200ms"})


def wait_replayed(standby: PostgresServer, lsn: int, timeout_s: float = LIMIT_S) -> None:
    wait_until(lambda: lsn_of(standby.sql(REPLAYED) or "0/0") >= lsn, timeout_s)


def fail_over(cluster: Cluster, standby: PostgresServer) -> Daemon:
    """Settle, replay and promote; return the proposer that then leads on the standby."""
    settled = cluster.settle("--seal", "--replayed-by", standby.dsn())
    assert lsn_of(settled["replayed_lsn"]) >= lsn_of(settled["consensus_lsn"]), settled
    standby.promote()
    proposer = cluster.new_proposer(f"proposer_{standby.port}", dsn=standby.dsn())
    proposer.start()
    return proposer


def rewind(old: PostgresServer, new: PostgresServer, upstream_port: int) -> None:
    """Rewind a stopped server as the refusal says, and make it a standby.

    postgresql.auto.conf has the last word (docs/failover.md).
    """
    arguments = ["--target-pgdata", str(old.data), "--source-server", new.dsn()]
    settings = (old.data / "postgresql.conf").read_text()  # the source's would come, with its port
    new.sql("CHECKPOINT")
    run_as_server_user([program("pg_rewind"), *arguments, "--no-sync"])
    (old.data / "postgresql.conf").write_text(settings)
    (old.data / "standby.signal").touch()
    with (old.data / "postgresql.auto.conf").open("a") as file:
        file.write(f"primary_conninfo = 'host=127.0.0.1 port={upstream_port} user=postgres'\n")
    old.configure({"wal_retrieve_retry_interval": "200ms"})


def unhealthy_lines(log: str) -> list[str]:
    """Return the lines of a standby's log that a healthy one does not write."""
    first = [line for line in log.splitlines() if re.match(r"\d{4}-\d\d-\d\d ", line)]
    return [line for line in first if not HEALTHY.search(line)]
