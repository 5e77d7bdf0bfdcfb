"""M7: logs that an operator closes."""

from __future__ import annotations

from tests.proof.mutants.mutant import CLOSE, Edit, Mutant

CLOSED_TEST = "tests/safekeeper/test_closed_log.py::"
NO_SUCH_LEADER = "no leader of ours sends what it removes"

CLOSING = (
    Mutant(
        "closed-log-gets-a-primary",
        "M7",
        "no primary is admitted to a closed log",
        (Edit("admission.closed", "end_lsn is None", "True"),),
        worlds=("close-again",),
        searched_by=(CLOSE,),
    ),
    Mutant(
        "proposer-of-a-closed-log-starts-again",
        "M7",
        "a supervisor does not start the proposer of a closed log again",
        (Edit("_refuse_or_go_on", "LogClosed(stop.text)", "Refused(stop.text)"),),
        turns_red="tests/common/test_daemon_ends.py::"
        "test_the_unit_does_not_start_the_proposer_of_a_closed_log_again",
        why_named="the simulator has no supervisor that reads exit codes",
    ),
    Mutant(
        "settle-opens-a-closed-log",
        "M7",
        "a settle keeps a log closed",
        (Edit("closes", "purpose is Purpose.CLOSE or was_closed", "purpose is Purpose.CLOSE"),),
        searched_by=(CLOSE,),
    ),
    Mutant(
        "history-goes-on-behind-a-close",
        "M7",
        "a safekeeper refuses a history with a fragment after a closed one",
        (Edit("is_well_formed", "any(entry.closed for entry in history[:-1])", "False"),),
        turns_red=CLOSED_TEST + "test_nothing_follows_a_closed_fragment",
        why_named=NO_SUCH_LEADER,
    ),
    Mutant(
        "closed-log-takes-wal",
        "M7",
        "a safekeeper takes no WAL past a close",
        (
            Edit(
                "Timelines.flaw",
                "self.closed_lsn is not None and end_lsn > self.closed_lsn",
                "False",
            ),
        ),
        turns_red=CLOSED_TEST + "test_a_safekeeper_refuses_wal_behind_the_close",
        why_named=NO_SUCH_LEADER,
    ),
    Mutant(
        "fast-append-to-a-closed-log",
        "M7",
        "the fast path takes no append to a closed log",
        (
            Edit(
                "expected_append.expected_append",
                "acceptor.timelines.closed_lsn is not None",
                "False",
            ),
        ),
        turns_red=CLOSED_TEST + "test_a_closed_log_has_no_fast_path",
        why_named=NO_SUCH_LEADER,
    ),
    Mutant(
        "close-of-a-few-counts",
        "M7",
        "a close counts when an ack quorum has it",
        (Edit("closed_facts", "have_quorum(facts, having)", "bool(having)"),),
        turns_red="tests/cli/test_closed_status.py::test_a_close_counts_when_an_ack_quorum_has_it",
        why_named="`status` decides nothing that a search judges",
    ),
    Mutant(
        "closed-log-hides-waiting-commits",
        "M7",
        "status says that commits wait for a closed log",
        (Edit("commits_without_a_proposer", 'not primary["waiting"]', "True"),),
        turns_red="tests/cli/test_closed_status.py::"
        "test_commits_that_wait_for_a_closed_log_are_critical",
        why_named="`status` decides nothing that a search judges",
    ),
)
