"""Our own, in what an elected proposer does."""

from __future__ import annotations

from tests.proof.mutants.mutant import SEARCHED, SEED_MOVES, Edit, Mutant

SCENARIO = "tests/consensus/test_scenarios.py::test_scenario"

LEADING = (
    Mutant(
        "nobody-is-fed-by-a-donor",
        "feeding",
        "a donor feeds a safekeeper that lags behind the window",
        (Edit("Feeder.feed", "member.attached and member.next_lsn < window.begin_lsn", "False"),),
    ),
    Mutant(
        "paused-for-good",
        "leadership",
        "a primary that was paused is read again when there is room",
        (
            Edit(
                "Leader.bound_window",
                "[PauseStreaming() if is_full else ResumeStreaming()]",
                "[PauseStreaming()] if is_full else []",
            ),
        ),
        turns_red=f"{SCENARIO}[laggard_behind_retention]",
        why_named=SEED_MOVES,
    ),
    Mutant(
        "streams-from-the-terms-start",
        "leadership",
        "a new connection to the primary continues where the last one ended",
        (Edit("Leader.start_streaming", "self.window.end_lsn", "self.window.begin_lsn"),),
    ),
    Mutant(
        "what-all-lost-is-waited-for",
        "leadership",
        "half a record that all have lost needs a new election",
        (Edit("Leader.lost_by_all", "not enough or max(ends) >= self.window.begin_lsn", "True"),),
        turns_red=f"{SCENARIO}[vanished_donor_needs_an_election]",
        why_named=SEARCHED,
    ),
    Mutant(
        "lost-link-still-counts",
        "consensus",
        "acknowledgements of a lost safekeeper do not count until it attaches again",
        (
            Edit("Proposer.on_link_lost", "member.lose()"),
            Edit("Leader.on_lost", "member.lose()"),
            Edit("Proposer.on_link_up", "member.lose()"),
        ),
        turns_red=f"{SCENARIO}[ack_of_a_lost_connection_does_not_count]",
        why_named=SEED_MOVES,
    ),
    Mutant(
        "no-verdict-is-a-pass",
        "primary_check",
        "a source that went away is no verdict",
        (Edit("PrimaryCheck.on_primary_read_failed", "Verdict.UNKNOWN", "Verdict.PASSED"),),
    ),
    Mutant(
        "settled-without-a-quorum",
        "leadership",
        "settle waits until an ack quorum has the log's end",
        (
            Edit(
                "Leader.settled",
                "self.purpose is Purpose.ATTACH or self.commit_lsn < self.start_lsn",
                "self.purpose is Purpose.ATTACH",
            ),
            Edit(
                "Leader.settled",
                "if not self.configuration.commits([m.name for m in knowing]):\n    return None\n",
            ),
        ),
    ),
)
