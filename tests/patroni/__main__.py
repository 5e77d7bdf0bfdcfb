"""Patroni promotes standbys that walkeeper's safekeepers feed: nothing acknowledged is lost.

    python -m tests.patroni                     with the real Patroni from PyPI
    python -m tests.patroni --only failovers    two of them
    python -m tests.patroni --only switchover   or standby-cluster, collision, equal-forks
    python -m tests.patroni --only gate         a primary starts closed behind a crash
    python -m tests.patroni --only gate --ungated        has to fail: the reader sees a row
    python -m tests.patroni --password          over TLS, and with a password for standby clusters

The configuration is that of docs/patroni.

Failovers: node1 leads and is attached. Patroni makes node2, which `walkeeper restore` alone feeds
(tag nostream). node1 is killed under load, with its Patroni and its proposer. Patroni's pre_promote
settles the log and lets node2 replay it. node2 is promoted, its `proposer --follow` takes over, and
every acknowledged row is there. node1 comes back, is rewound by Patroni and follows. Then node2 is
killed, and all goes the other way round.

Standby cluster: it streams from the safekeepers. node1 is lost with its whole cluster, and the
standby cluster is promoted.

Collision: node2 is promoted by hand while Patroni is away, and writes a row without a quorum.
Patroni then promotes node1 to the same number. node2 may not come back before it is rebuilt.

Equal forks: the same, but both leave the old timeline at one LSN. So their history files are equal.

Gate: closed_starts.py.

About four minutes, most of it Patroni's ttl of 20 s. Exit code 0: no row was lost. Exit code 1:
a row was lost, or a step did not happen in time. Exit code 3: Patroni could not be installed, and
why.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from tests.patroni.closed_starts import ClosedStarts
from tests.patroni.nodes import MORE_PACKAGES, Node, Site
from tests.support.cluster import Daemon, walkeeper
from tests.support.installations import Unavailable
from tests.support.journal import Journal
from tests.support.program_parser import program_parser
from tests.support.restore_installation import installed
from tests.support.waiting import wait_until

TLS_PACKAGES = ("cryptography", "cffi", "_cffi_backend")
SYNCHRONOUS = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
PLAYS = ("failovers", "switchover", "standby-cluster", "collision", "equal-forks", "gate")
IS_OPEN = "SELECT coalesce(current_setting('walkeeper.gate', true), 'open') = 'open'"
ALONE = "SELECT to_regclass('alone') IS NOT NULL"
REFUSED = "the server's WAL is not the log of cluster main"
UP_S = 90.0


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Play:
    """The steps, in order; `journals` have what was acknowledged."""

    def __init__(self, site: Site, commits: int) -> None:
        self.site, self.cluster, self.commits = site, site.cluster, commits
        self.journals: list[Journal] = []
        self.proposers = {node.name: self._proposer(node) for node in site.nodes}
        self.is_good = True

    def _proposer(self, node: Node) -> Daemon:
        options = ("--follow", *self.site.proposer_options)
        return self.cluster.new_proposer(node.name, *options, dsn=node.dsn())

    def begin(self, *, with_second: bool) -> None:
        """Make the log and the switch before the second node, as docs/patroni.md says."""
        first, second = self.site.nodes
        first.start()
        wait_until(lambda: first.is_leader, UP_S)
        self.cluster.start_safekeepers()
        self.cluster.make_log()
        for proposer in self.proposers.values():
            proposer.start(wait=False)
        self.proposers[first.name].wait_ready()
        line = walkeeper("attach", "--print", "--dsn", first.dsn())
        assert line.returncode == 0, line
        name, value = (part.strip() for part in line.stdout.splitlines()[-1].split("=", 1))
        say(f"attach --print: {name} = {value}")
        first.configure_cluster({"postgresql": {"parameters": {name: value.strip("'")}}})
        wait_until(lambda: first.sql(SYNCHRONOUS) == 1, UP_S)
        say("node1 leads and is attached")
        if with_second:
            second.start()
            wait_until(lambda: second.is_replica, UP_S)
            say("node2 replays what safekeepers have")

    def lose(self, old: Node, new: Node) -> None:
        """Kill `old` under load, and wait until Patroni promotes `new`."""
        with Journal(old, writers=8) as journal:
            journal.wait_for_more(self.commits)
            old.kill()
            began_s = time.monotonic()
            self.proposers[old.name].kill()
        self.journals.append(journal)
        is_there = new.sql("SELECT to_regclass('journal')") is not None
        behind = len(journal.lost_in(new) if is_there else journal.acknowledged)
        wait_until(lambda: new.is_leader, UP_S)
        promoted_s = time.monotonic() - began_s
        with Journal(new) as later:
            later.wait_for_more(1)
            first_commit_s = time.monotonic() - began_s
            later.wait_for_more(100)
        self.journals.append(later)
        lost = set[int]().union(*(each.lost_in(new) for each in self.journals))
        acknowledged = sum(len(each.acknowledged) for each in self.journals)
        self.is_good = self.is_good and not lost
        say(
            f"{old.name} killed: {behind} acknowledged rows were not on {new.name}; leader after "
            f"{promoted_s:.1f} s on timeline {new.timeline}, first commit after "
            f"{first_commit_s:.1f} s; {acknowledged} acknowledged in all, {len(lost)} lost"
        )

    def return_as_standby(self, old: Node, new: Node) -> None:
        """Wait until Patroni has rewound it; its proposer waits for its next turn."""
        began_s = time.monotonic()
        old.start()
        self.proposers[old.name].start(wait=False)
        end_lsn = new.sql("SELECT pg_current_wal_flush_lsn()")
        wait_until(lambda: old.is_replica and old.timeline == new.timeline, UP_S)
        replayed = f"SELECT pg_last_wal_replay_lsn() >= '{end_lsn}'"
        wait_until(lambda: old.sql(replayed), UP_S)
        self.proposers[old.name].wait_ready()
        lost = set[int]().union(*(each.lost_in(old) for each in self.journals))
        self.is_good = self.is_good and not lost
        say(
            f"{old.name} is back as a standby on timeline {old.timeline} after "
            f"{time.monotonic() - began_s:.1f} s, {len(lost)} lost there"
        )

    def switch(self, old: Node, new: Node) -> None:
        """Switch over by plan: Patroni stops the one, and promotes the other."""
        with Journal(old, writers=8) as journal:
            journal.wait_for_more(self.commits)
        self.journals.append(journal)
        began_s = time.monotonic()
        old.switch_over(new)
        wait_until(lambda: new.is_leader, UP_S)
        with Journal(new) as later:
            later.wait_for_more(100)
        self.journals.append(later)
        lost = set[int]().union(*(each.lost_in(new) for each in self.journals))
        self.is_good = self.is_good and not lost
        say(
            f"{new.name} leads on timeline {new.timeline} behind a switchover and has committed "
            f"{time.monotonic() - began_s:.1f} s later, {len(lost)} lost"
        )
        wait_until(lambda: old.is_replica and old.timeline == new.timeline, UP_S)
        end_lsn = new.sql("SELECT pg_current_wal_flush_lsn()")
        wait_until(lambda: old.sql(f"SELECT pg_last_wal_replay_lsn() >= '{end_lsn}'"), UP_S)
        wait_until(lambda: old.sql(IS_OPEN), UP_S)
        say(f"{old.name} follows it, and admits clients")

    def collide(self, first: Node, second: Node, *, at_one_lsn: bool) -> None:
        """Promote both to one timeline; the log follows the one that Patroni promotes.

        With `at_one_lsn` the first one stops and a quorum has all its WAL; else it is killed under
        load. (Behind a crash, Patroni starts it alone first. That writes WAL of its own.)"""
        with Journal(first, writers=8) as journal:
            journal.wait_for_more(self.commits)
            first.patroni.kill()
            if not at_one_lsn:
                first.kill()
        self.journals.append(journal)
        if at_one_lsn:
            first.stop()
        for proposer in self.proposers.values():
            proposer.kill()
        second.patroni.kill()
        end_lsn = self.cluster.settle("--seal")["consensus_lsn"]
        wait_until(lambda: second.sql(f"SELECT pg_last_wal_replay_lsn() >= '{end_lsn}'"), UP_S)
        second.promote()
        second.sql("SET synchronous_commit = local", "CREATE TABLE alone (i int)", "CHECKPOINT")
        second.kill()
        first.start()
        self.proposers[first.name].start(wait=False)
        wait_until(lambda: first.is_leader, UP_S)
        with Journal(first) as later:
            later.wait_for_more(100)
        self.journals.append(later)
        say(f"node2 was promoted alone, node1 by Patroni; it leads on timeline {first.timeline}")
        if at_one_lsn:
            name = f"pg_wal/{first.timeline:08X}.history"
            histories = [(node.data / name).read_text() for node in (first, second)]
            assert histories[0] == histories[1], histories
            say(f"their history files are equal: {histories[0].strip()}")
        second.start()
        wait_until(lambda: REFUSED in second.log_text(), UP_S)
        refusal = next(line for line in second.log_text().splitlines() if REFUSED in line)
        say(f"node2 is refused: {refusal}")
        assert not second.is_replica, second.log_text()[-3000:]
        second.rebuild()
        wait_until(lambda: second.is_replica and second.timeline == first.timeline, UP_S)
        end_lsn = first.sql("SELECT pg_current_wal_flush_lsn()")
        wait_until(lambda: second.sql(f"SELECT pg_last_wal_replay_lsn() >= '{end_lsn}'"), UP_S)
        lost = set[int]().union(*(j.lost_in(n) for j in self.journals for n in self.site.nodes))
        alone = [node.name for node in self.site.nodes if node.sql(ALONE)]
        self.is_good = self.is_good and not lost and not alone
        say(f"node2 is rebuilt: {len(lost)} lost; the lone row is on {alone or 'no node'}")

    def stand_by_elsewhere(self) -> None:
        """Let a standby cluster stream from the safekeepers and outlive the whole first one."""
        (first, _), elsewhere = self.site.nodes, self.site.elsewhere
        elsewhere.start()
        wait_until(lambda: elsewhere.ask().get("role") == "standby_leader", UP_S)
        with Journal(first, writers=8) as journal:
            journal.wait_for_more(self.commits)
            wait_until(lambda: self._streams(elsewhere), UP_S)
            first.kill()
            self.site.controller.kill()
            began_s = time.monotonic()
            self.proposers[first.name].kill()
        say(f"elsewhere streams from safekeeper {self._streams(elsewhere)}; node1 is gone")
        self.journals.append(journal)
        proposer = self.proposers["elsewhere1"] = self._proposer(elsewhere)
        proposer.start()
        elsewhere.configure_cluster({"standby_cluster": None})
        wait_until(lambda: elsewhere.is_leader, UP_S)
        with Journal(elsewhere) as later:
            later.wait_for_more(100)
        lost = journal.lost_in(elsewhere) | later.lost_in(elsewhere)
        self.is_good = self.is_good and not lost
        say(
            f"elsewhere leads on timeline {elsewhere.timeline} and has committed "
            f"{time.monotonic() - began_s:.1f} s later; {len(journal.acknowledged)} acknowledged "
            f"before, {len(lost)} lost"
        )

    def _streams(self, node: Node) -> int | None:
        """Return the safekeeper that it streams from."""
        for line in self.cluster.status()["safekeepers"]:
            names = [s["application_name"] for s in line["standbys"] if s["state"] == "streaming"]
            if node.name in names:
                return int(line["id"])
        return None


def play(what: str, *, commits: int, asks_for_passwords: bool, is_gated: bool = True) -> bool:
    """Return True if no row was lost."""
    with (
        installed((*MORE_PACKAGES, *TLS_PACKAGES * asks_for_passwords)) as installation,
        Site.create(installation, asks_for_passwords=asks_for_passwords, is_gated=is_gated) as site,
    ):
        steps = Play(site, commits)
        first, second = site.nodes
        try:
            steps.begin(with_second=what not in ("standby-cluster", "gate"))
            if what == "failovers":
                steps.lose(first, second)
                steps.return_as_standby(first, second)
                steps.lose(second, first)
            elif what == "gate":
                steps.is_good = ClosedStarts(site, steps.proposers[first.name], say).play()
            elif what == "switchover":
                steps.switch(first, second)
            elif what in ("collision", "equal-forks"):
                steps.collide(first, second, at_one_lsn=what == "equal-forks")
            else:
                steps.stand_by_elsewhere()
        except AssertionError:
            for node in (*site.nodes, site.elsewhere):
                say(f"--- {node.name}\n{node.log_text()[-6000:]}")
            for proposer in (p for p in steps.proposers.values() if p.log.exists()):
                say(f"--- proposer {proposer.name}\n{proposer.output()[-3000:]}")
            raise
        return steps.is_good


def main(arguments: Sequence[str]) -> int:
    parser = program_parser("tests.patroni", __doc__)
    parser.add_argument("--commits", type=int, default=1000, help="before each loss")
    parser.add_argument("--only", choices=PLAYS, help="one of them")
    parser.add_argument(
        "--password",
        action="store_true",
        help="the safekeepers have TLS and a users file; Patroni's commands and the proposers have "
        "a certificate, and its standby cluster gives a password",
    )
    parser.add_argument(
        "--ungated", action="store_true", help="Patroni starts postgres itself, without the gate"
    )
    asked = parser.parse_args(arguments)
    plays = PLAYS if asked.only is None else (asked.only,)
    try:
        good = [
            play(
                what,
                commits=asked.commits,
                asks_for_passwords=asked.password,
                is_gated=not asked.ungated,
            )
            for what in plays
        ]
        return 0 if all(good) else 1
    except Unavailable as why:
        say(f"Patroni could not be installed: {why}")
        return 3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
