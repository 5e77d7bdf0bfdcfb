"""R8 to R12: appends, acknowledgements, commits, and reports to PostgreSQL."""

from __future__ import annotations

from tests.proof.mutants.electing import STARTS_AT_C
from tests.proof.mutants.mutant import SEARCHED, SEED_MOVES, Edit, Mutant

SCENARIO = "tests/consensus/test_scenarios.py::test_scenario"

NO_BYTE = "it costs some milliseconds and no byte of a log"

APPENDING = (
    Mutant(
        "gap-is-written",
        "R8",
        "an append starts exactly at the write position",
        (Edit("Acceptor.on_append", "append.begin_lsn != self.write_lsn", "False"),),
    ),
    Mutant(
        "anybody-appends",
        "R8",
        "an append counts only after ProposerElected on its own connection",
        (
            Edit(
                "Acceptor.on_append",
                "connection != self.appender or append.ballot != self.durable.ballot",
                "self.appender is None",
            ),
        ),
    ),
    Mutant(
        "ack-before-the-fsync",
        "R9",
        "an acknowledgement follows the fdatasync that covers it",
        (
            Edit(
                "Driver._write_group",
                "self._is_writing = True",
                "self._is_writing, last = True, self._queued[-1]\n"
                "self.post(WalFlushed(last.begin_lsn + len(last.payload)))\n",
            ),
        ),
    ),
    Mutant(
        "ack-of-what-is-written",
        "R9",
        "flush_lsn is what a finished fdatasync covers, not what was written",
        (Edit("ack_of", "acceptor.flush_lsn", "acceptor.write_lsn"),),
    ),
    Mutant(
        "no-reached-mark",
        "R9",
        "the start of a term is marked as reached before the first ack there (with S = C)",
        (
            STARTS_AT_C,
            Edit("due_marks", "log.flush_lsn >= log.unreached_lsn", "False"),
            Edit(
                "Acceptor.become_follower", "reached_lsn=cut(elected.history, start)[-1].start_lsn"
            ),
        ),
        worlds=("restarts-four-terms",),
    ),
    Mutant(
        "below-the-terms-start-counts",
        "R10",
        "an acknowledgement below the term's start counts with 0",
        (Edit("Leader.advance_commit", "lsn if lsn >= start_lsn else ZERO_LSN", "lsn"),),
        turns_red=f"{SCENARIO}[commit_needs_the_term_start]",
        why_named=SEED_MOVES,
    ),
    Mutant(
        "feedback-is-vcl",
        "seed flaw 1",
        "`else 0`: the seed counts who is in an older epoch with VCL",
        (Edit("Leader.advance_commit", "ZERO_LSN", "start_lsn"),),
    ),
    Mutant(
        "vote-counts-as-ack",
        "R10",
        "a safekeeper counts with 0 until it has answered in this term",
        (
            Edit(
                "Leader.counted",
                "{m.name: m for m in self.members if m.attached}",
                "{m.name: m for m in self.members}",
            ),
            Edit(
                "Member.start_streaming",
                "ZERO_LSN, self.vote.oldest_lsn",
                "self.vote.flush_lsn, self.vote.oldest_lsn",
            ),
        ),
    ),
    Mutant(
        "greatest-ack-counts",
        "R10",
        "an acknowledged value is replaced, not maxed, when a safekeeper attaches again",
        (
            Edit(
                "Member.start_streaming",
                "self.flush_lsn, self.oldest_lsn = ZERO_LSN, self.vote.oldest_lsn",
                "self.oldest_lsn = self.vote.oldest_lsn",
            ),
            Edit(
                "Member._detach",
                "self.flush_lsn, self.attached, self.awaits_witness = ZERO_LSN, False, False",
                "self.attached, self.awaits_witness = False, False",
            ),
            Edit(
                "Leader.on_append_response",
                "member.flush_lsn, member.silent_ticks = response.flush_lsn, 0",
                "member.flush_lsn = max(member.flush_lsn, response.flush_lsn)",
            ),
        ),
        turns_red=f"{SCENARIO}[ack_of_a_lost_connection_does_not_count]",
        why_named=SEARCHED,
    ),
    Mutant(
        "commit-beyond-the-flush",
        "R11",
        "an acceptor's commit_lsn is at most its flush_lsn",
        (
            Edit(
                "LogPositions.move_commit",
                "min(self.leader_commit_lsn, self.flush_lsn)",
                "self.leader_commit_lsn",
            ),
        ),
    ),
    Mutant(
        "received-is-reported",
        "R12",
        "the report to PostgreSQL is commit_lsn, not the LSN of the received WAL",
        (
            Edit(
                "Leader.lsn_to_report",
                "min(self.commit_lsn, self.window.end_lsn)",
                "self.window.end_lsn",
            ),
        ),
    ),
    Mutant(
        "applied-is-not-clamped",
        "R12",
        "the report of what standbys applied ends at commit_lsn",
        (
            Edit(
                "applied_lsn",
                "min(commit_lsn, min(applied, default=ZERO_LSN))",
                "min(applied, default=ZERO_LSN)",
            ),
        ),
    ),
    Mutant(
        "one-standby-is-enough",
        "R12",
        "the report takes the standby that has applied least",
        (Edit("applied_lsn", "min(applied, default=ZERO_LSN)", "max(applied, default=ZERO_LSN)"),),
    ),
    Mutant(
        "sent-is-counted",
        "R10, R12",
        "WAL that was only sent to a safekeeper does not count as acknowledged",
        (Edit("Leader.advance_commit", "member.flush_lsn", "member.next_lsn"),),
    ),
    Mutant(
        "standbys-wait-for-the-next-append",
        "R10",
        "a member with standbys gets a commit at once if no WAL is on its way",
        (
            Edit(
                "Leader._announce_soon",
                "read if self.commit_lsn == self.window.end_lsn else []",
                "list[Member]()",
            ),
        ),
        turns_red=f"{SCENARIO}[commit_is_announced_at_once_to_standbys]",
        why_named=NO_BYTE,
    ),
    Mutant(
        "newer-commit-is-not-announced",
        "R10",
        "an announcement that finds a newer commit_lsn asks for another one",
        (
            Edit(
                "Leader.announce",
                "self._announce_soon() if len(waiting) < len(lacking) else []",
                "list[Effect]()",
            ),
        ),
        turns_red=f"{SCENARIO}[commit_is_announced_to_whom_no_append_told]",
        why_named="heartbeats go out every second anyway",
    ),
    Mutant(
        "standbys-wait-for-the-announcement",
        "R10",
        "the core learns soon of a commit on the fast path if a member has standbys",
        (
            Edit(
                "walkeeper_proposer.proposer_driver.Driver.on_news",
                "self._has_standbys or not self._is_announcing",
                "not self._is_announcing",
            ),
        ),
        turns_red="tests/proposer/test_fast_announcements.py"
        "::test_standbys_do_not_wait_for_the_announcement",
        why_named=NO_BYTE,
    ),
    Mutant(
        "no-heartbeats",
        "R10",
        "a heartbeat goes out when commit_lsn moves, and every second",
        (
            Edit("Leader.after_ack", "(self._announce_soon() if moves else [])", "list[Effect]()"),
            Edit(
                "Proposer.on_tick", "effects.append(self.leader.feeder.heartbeat(member))", "pass"
            ),
        ),
        turns_red=f"{SCENARIO}[ack_of_a_lost_connection_does_not_count]",
        why_named=SEED_MOVES,
    ),
)
