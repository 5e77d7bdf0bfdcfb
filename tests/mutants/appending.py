"""R8 to R12: appends, acknowledgements, commits, and reports to PostgreSQL."""

from __future__ import annotations

from tests.mutants.electing import STARTS_AT_C
from tests.mutants.mutant import PROPOSER, SAFEKEEPER, Edit, Mutant

ACCEPTOR = SAFEKEEPER + "consensus/acceptor.py"
ANSWERS = SAFEKEEPER + "consensus/answers.py"
CONSENSUS = PROPOSER + "consensus/proposer.py"
DRIVER = SAFEKEEPER + "driver.py"
LEADERSHIP = PROPOSER + "consensus/leadership.py"
FEEDBACK = PROPOSER + "postgres/standby_feedback.py"
MARKS = SAFEKEEPER + "consensus/marks.py"
STEADY_LEADER = PROPOSER + "consensus/steady.py"
STEADY = SAFEKEEPER + "consensus/steady.py"
PROGRESS = PROPOSER + "consensus/progress.py"
WAL_STORE = SAFEKEEPER + "storage/wal_store.py"
TAIL = SAFEKEEPER + "storage/tail.py"

APPENDING = (
    Mutant(
        "gap-is-written",
        "R8",
        "an append starts exactly at the write position",
        (Edit(ACCEPTOR, "        if append.begin_lsn != self.write_lsn:", "        if False:"),),
    ),
    Mutant(
        "anybody-appends",
        "R8",
        "an append comes behind ProposerElected on its own connection",
        (
            Edit(
                ACCEPTOR,
                "        if connection != self.appender or append.ballot != self.durable.ballot:",
                "        if self.appender is None:",
            ),
        ),
    ),
    Mutant(
        "ack-before-the-fsync",
        "R9",
        "an acknowledgement comes behind the fdatasync that covers it",
        (
            Edit(
                DRIVER,
                "        self._is_writing = True\n",
                "        self._is_writing, last = True, self._queued[-1]\n"
                "        self.post(WalFlushed(last.begin_lsn + len(last.payload)))\n",
            ),
        ),
    ),
    Mutant(
        "ack-of-what-is-written",
        "R9",
        "flush_lsn is what a finished fdatasync covers, not what was written",
        (
            Edit(
                ANSWERS,
                "        flush_lsn=acceptor.flush_lsn,\n        durable_commit_lsn",
                "        flush_lsn=acceptor.write_lsn,\n        durable_commit_lsn",
            ),
        ),
    ),
    Mutant(
        "no-reached-mark",
        "R9",
        "the start of a term is marked as reached before the first ack there (with S = C)",
        (
            STARTS_AT_C,
            Edit(MARKS, "    if log.flush_lsn >= log.unreached_lsn:", "    if False:"),
            Edit(
                ACCEPTOR,
                "            reached_lsn=cut(elected.history, start)[-1].start_lsn,\n",
                "",
            ),
        ),
        worlds=("restarts-four-terms",),
    ),
    Mutant(
        "below-the-terms-start-counts",
        "R10",
        "an acknowledgement below the term's start counts with 0",
        (
            Edit(
                LEADERSHIP,
                "lsn if lsn >= start_lsn else ZERO_LSN",
                "lsn",
            ),
        ),
    ),
    Mutant(
        "feedback-is-vcl",
        "seed flaw 1",
        "`else 0`: the seed counts who is in an older epoch with VCL",
        (
            Edit(
                LEADERSHIP,
                "lsn if lsn >= start_lsn else ZERO_LSN",
                "lsn if lsn >= start_lsn else start_lsn",
            ),
        ),
    ),
    Mutant(
        "vote-counts-as-ack",
        "R10",
        "a safekeeper counts with 0 until it has answered in this term",
        (
            Edit(
                LEADERSHIP,
                "{m.name: m for m in self.members if m.attached}\n        return [[",
                "{m.name: m for m in self.members}\n        return [[",
            ),
            Edit(
                PROGRESS,
                "        self.flush_lsn, self.first_lsn = ZERO_LSN, self.vote.first_lsn",
                "        self.flush_lsn, self.first_lsn = self.vote.flush_lsn, self.vote.first_lsn",
            ),
        ),
    ),
    Mutant(
        "greatest-ack-counts",
        "R10",
        "an acknowledged value is replaced, not maxed, when a safekeeper attaches again",
        (
            Edit(
                PROGRESS,
                "        self.flush_lsn, self.first_lsn = ZERO_LSN, self.vote.first_lsn",
                "        self.first_lsn = self.vote.first_lsn",
            ),
            Edit(
                PROGRESS,
                "        self.flush_lsn, self.attached, self.silent_ticks = ZERO_LSN, False, 0\n",
                "        self.attached, self.silent_ticks = False, 0\n",
            ),
            Edit(
                LEADERSHIP,
                "        member.flush_lsn, member.silent_ticks = response.flush_lsn, 0\n",
                "        member.flush_lsn = max(member.flush_lsn, response.flush_lsn)\n",
            ),
        ),
        turns_red="tests/test_scenarios.py::test_scenario[ack_of_a_lost_connection_does_not_count]",
    ),
    Mutant(
        "steady-gap",
        "R8",
        "the short way of an append is for WAL at the write position only",
        (Edit(STEADY, "                or begin != end_lsn\n", ""),),
        turns_red="tests/safekeeper/test_steady_append.py"
        "::test_both_ways_end_in_the_same_state_and_say_the_same[4]",
    ),
    Mutant(
        "steady-of-another-term",
        "R8",
        "the short way of an append is for the elected leader's own frames only",
        (
            Edit(
                STEADY,
                "                term != self._append_term\n                or ",
                "                ",
            ),
        ),
        turns_red="tests/safekeeper/test_steady_append.py"
        "::test_both_ways_end_in_the_same_state_and_say_the_same[1]",
    ),
    Mutant(
        "steady-damaged",
        "R8",
        "WAL that was damaged on its way is not written on the short way either",
        (Edit(STEADY, "if crc_of(piece) != crc:", "if False:"),),
        turns_red="tests/safekeeper/test_steady_append.py"
        "::test_both_ways_end_in_the_same_state_and_say_the_same[4]",
    ),
    Mutant(
        "steady-heartbeat-unanswered",
        "R10",
        "a heartbeat that says nothing new is answered: silence means that nobody is there",
        (
            Edit(
                STEADY,
                "            if not is_news:",
                "            if not at:",
            ),
        ),
        turns_red="tests/safekeeper/test_steady_append.py"
        "::test_both_ways_end_in_the_same_state_and_say_the_same[4]",
    ),
    Mutant(
        "steady-outlives-an-event",
        "R3",
        "what the short way knows is void with the next event, a deposing election for one",
        (
            Edit(
                DRIVER, "        self._void_steady()\n        self._events", "        self._events"
            ),
        ),
        turns_red="tests/safekeeper/test_steady_append.py"
        "::test_the_short_way_ends_with_the_leaders_term",
    ),
    Mutant(
        "steady-unmarked",
        "R9",
        "the short way of an append ends before a mark that must be durable first",
        (Edit(STEADY, "min(acceptor.unreached_lsn, segment_end_lsn)", "segment_end_lsn"),),
        turns_red="tests/safekeeper/test_steady_append.py::test_a_mark_is_made_before_the_ack",
    ),
    Mutant(
        "steady-unsynced",
        "R9",
        "an acknowledgement on the short way comes behind the fdatasync that covers it",
        (Edit(TAIL, "            self._sync()\n", ""),),
    ),
    Mutant(
        "steady-over-an-unfinished-record",
        "R9",
        "what is below a page that cuts off a record is durable before that page is written",
        (Edit(TAIL, " or overwriting_pages(offset, wal):", ":"),),
        turns_red="tests/safekeeper/test_steady_append.py"
        "::test_a_page_that_cuts_off_a_record_is_no_small_append",
    ),
    Mutant(
        "steady-ack-of-another-term",
        "R10",
        "the short way of an ack is for acks of this term only",
        (
            Edit(
                STEADY_LEADER,
                "if head != self._ack_head or flush < flush_lsn:",
                "if flush < flush_lsn:",
            ),
        ),
        turns_red="tests/proposer/test_steady_leader.py"
        "::test_both_ways_end_in_the_same_state_and_say_the_same[2]",
    ),
    Mutant(
        "steady-ack-beyond-what-was-sent",
        "R10",
        "an ack of more than was sent does not count on the short way either",
        (Edit(STEADY_LEADER, "if flush_lsn > member.next_lsn:", "if False:"),),
        turns_red="tests/proposer/test_steady_leader.py"
        "::test_both_ways_end_in_the_same_state_and_say_the_same[2]",
    ),
    Mutant(
        "steady-acks-outlive-an-event",
        "R10",
        "what the short way of an ack knows is void with the next event, a lost link for one",
        (
            Edit(
                PROPOSER + "driver.py",
                "            self._steady = None",
                "            pass",
            ),
        ),
        turns_red="tests/proposer/test_steady_leader.py"
        "::test_both_ways_end_in_the_same_state_and_say_the_same[2]",
    ),
    Mutant(
        "steady-append-over-a-fork",
        "R8",
        "no append of the short way crosses the fork of two timelines",
        (Edit(STEADY_LEADER, " and end_lsn >= timelines.last_start_lsn", ""),),
        turns_red="tests/proposer/test_steady_leader.py"
        "::test_no_append_crosses_a_fork_that_lies_ahead",
    ),
    Mutant(
        "commit-beyond-the-flush",
        "R11",
        "an acceptor's commit_lsn is at most its flush_lsn",
        (
            Edit(
                ACCEPTOR,
                "max(before_lsn, min(self.told_commit_lsn, self.flush_lsn))",
                "max(before_lsn, self.told_commit_lsn)",
            ),
        ),
    ),
    Mutant(
        "received-is-reported",
        "R12",
        "PostgreSQL is told of commit_lsn, not of what was received",
        (
            Edit(
                LEADERSHIP,
                "        lsn = min(self.commit_lsn, self.window.end_lsn)",
                "        lsn = self.window.end_lsn",
            ),
        ),
    ),
    Mutant(
        "applied-is-not-clamped",
        "R12",
        "what standbys have applied is reported up to commit_lsn only",
        (
            Edit(
                FEEDBACK,
                "    return min(commit_lsn, min(applied, default=ZERO_LSN))",
                "    return min(applied, default=ZERO_LSN)",
            ),
        ),
    ),
    Mutant(
        "one-standby-is-enough",
        "R12",
        "the least that all standbys have applied is reported",
        (
            Edit(
                FEEDBACK,
                "    return min(commit_lsn, min(applied, default=ZERO_LSN))",
                "    return min(commit_lsn, max(applied, default=ZERO_LSN))",
            ),
        ),
    ),
    Mutant(
        "sent-is-counted",
        "R10, R12",
        "what was sent to a safekeeper is not acknowledged by it",
        (
            Edit(
                LEADERSHIP,
                "                lsn = member.flush_lsn\n",
                "                lsn = member.next_lsn\n",
            ),
        ),
    ),
    Mutant(
        "no-heartbeats",
        "R10",
        "a heartbeat goes out when commit_lsn moves, and every second",
        (
            Edit(
                LEADERSHIP,
                "        effects = self._announce_soon() if moves else []\n",
                "        effects = list[Effect]()\n",
            ),
            Edit(
                CONSENSUS,
                "                effects.append(self.leader.feeder.heartbeat(member))",
                "                pass",
            ),
        ),
    ),
)
