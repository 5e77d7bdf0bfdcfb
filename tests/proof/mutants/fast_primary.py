"""R12 on the compiled stream of a primary: WAL from libpq to the members, and commits back."""

from __future__ import annotations

from tests.proof.mutants.mutant import (
    BUSY,
    PRIMARY_PATH,
    SEARCHED,
    SIM,
    Edit,
    FastEdit,
    Mutant,
)

TEST = "tests/proposer/test_fast_primary.py::test_"
NO_LIBPQ = "the simulated streams lose, delay and damage no CopyData of libpq"

FAST_PRIMARY = (
    Mutant(
        "fast-report-past-what-was-received",
        "R12",
        "the fast path reports at most what this connection has received",
        (
            FastEdit(
                "if not self.flush_lsn < commit_lsn <= self.received_lsn:",
                "if not self.flush_lsn < commit_lsn:",
                PRIMARY_PATH,
            ),
        ),
        turns_red=TEST + "a_report_past_what_was_received_is_cut",
        searched_by=(SIM, BUSY),
        why_named=SEARCHED,
    ),
    Mutant(
        "fast-report-goes-back",
        "R12",
        "a report of the fast path takes nothing back",
        (
            FastEdit(
                "if not self.flush_lsn < commit_lsn <= self.received_lsn:",
                "if not commit_lsn <= self.received_lsn:",
                PRIMARY_PATH,
            ),
        ),
        turns_red=TEST + "an_older_report_takes_nothing_back",
        searched_by=(SIM, BUSY),
        why_named=SEARCHED,
    ),
    Mutant(
        "fast-wal-with-a-gap",
        "R8",
        "the fast path takes WAL of the primary that follows what came before",
        (FastEdit("if be64(head + XLOG_LSN_AT) != self.received_lsn:", "if False:", PRIMARY_PATH),),
        turns_red=TEST + "wal_that_does_not_follow_ends_the_connection",
        why_named=NO_LIBPQ,
    ),
    Mutant(
        "fast-stream-outlives-an-event",
        "R10",
        "with the template, links and primary lose the fast path",
        (Edit("walkeeper_proposer.proposer_driver.Driver._end_fast", "self._fast.end()"),),
        turns_red=TEST + "the_links_and_the_primary_lose_the_fast_path_with_its_template",
        searched_by=(SIM, BUSY),
        why_named=SEARCHED,
    ),
    Mutant(
        "fast-events-are-left-waiting",
        "driver",
        "events that come while the fast path sends are stepped after it",
        (Edit("walkeeper_proposer.proposer_driver.Driver.run_waiting", "self._run(())", "pass"),),
        turns_red=TEST + "an_event_that_comes_meanwhile_waits",
        searched_by=(SIM, BUSY),
        why_named=SEARCHED,
    ),
    Mutant(
        "fast-status-over-an-unsent-one",
        "replication_connection",
        "no status is queued behind one that the socket has not taken",
        (FastEdit("if self.connection.wants_write:", "if False:", PRIMARY_PATH),),
        turns_red=TEST + "a_status_that_has_not_left_is_followed_by_the_newest",
        why_named=NO_LIBPQ,
    ),
    Mutant(
        "fast-report-to-a-closed-connection",
        "primary",
        "the fast path reports to a connection that is open",
        (FastEdit("self.connection = self.stream = None", "pass", PRIMARY_PATH),),
        turns_red=TEST + "nothing_is_reported_to_a_connection_that_is_closed",
        searched_by=(SIM, BUSY),
        why_named=SEARCHED,
    ),
    Mutant(
        "fast-report-of-other-feedback",
        "standby_feedback",
        "the shell reports what standbys have applied, where that counts",
        (FastEdit(" or feedback is not self.feedback:", ":", PRIMARY_PATH),),
        turns_red=TEST + "what_standbys_apply_is_reported_by_the_shell",
        why_named="the simulated proposers run without --apply standbys",
    ),
    Mutant(
        "fast-silence-is-not-asked-about",
        "primary",
        "a primary that says nothing for long is asked on the fast path too",
        (
            FastEdit(
                "if self.silent_statuses >= self.silent_statuses_ask:", "if False:", PRIMARY_PATH
            ),
        ),
        turns_red=TEST + "a_long_silence_is_asked_about",
        why_named=NO_LIBPQ,
    ),
    Mutant(
        "fast-gathers-without-bound",
        "primary",
        "the fast path gathers at most what one append may hold",
        (
            FastEdit(
                "if self.gathered_bytes + wal_bytes > self.gathered_bytes_max:",
                "if False:",
                PRIMARY_PATH,
            ),
        ),
        turns_red=TEST + "more_than_one_append_may_hold_is_sent_in_pieces",
        searched_by=(SIM, BUSY),
        why_named=SEARCHED,
    ),
)
