"""R25: nothing grows without a way out, and what no run of the protocol makes is refused."""

from __future__ import annotations

from tests.proof.mutants.mutant import FAST_FRAMES, Edit, FastEdit, Mutant

FULL_TESTS = "tests/proposer/test_full_history.py::test_"
SCENARIO = "tests/consensus/test_scenarios.py::test_scenario"
NO_FORGERY = "no simulated peer forges messages, and no seed fills a history"

BOUNDS = (
    Mutant(
        "history-without-a-reserve",
        "R25",
        "a leader is refused while the history has room for the elections that shorten it",
        (Edit("fullness", "most if is_way_out else most - HISTORY_RESERVE", "most"),),
        turns_red=FULL_TESTS + "a_leader_for_a_primary_is_refused_while_there_is_room",
        why_named=NO_FORGERY,
    ),
    Mutant(
        "no-way-out-of-a-full-history",
        "R25",
        "settle, replacements and elections with all members may use the reserve",
        (
            Edit(
                "fullness",
                "most if is_way_out else most - HISTORY_RESERVE",
                "most - HISTORY_RESERVE",
            ),
        ),
        turns_red=FULL_TESTS + "elections_that_make_it_short_again_still_work",
        why_named=NO_FORGERY,
    ),
    Mutant(
        "any-term-is-believed",
        "R25",
        "a jump of a term by more than 2^32 is refused as forged",
        (Edit("is_forged", "ballot.term - known.term > TERM_JUMP_MAX", "False"),),
        turns_red=f"{SCENARIO}[forged_ballot_is_refused]",
        why_named=NO_FORGERY,
    ),
    Mutant(
        "forged-promise-stops-candidates",
        "R25",
        "a safekeeper with a promise that no candidate reaches takes no part",
        (Edit("unwelcome", "is_forged(greeting.ballot, greeting.history[-1].ballot)", "False"),),
        turns_red=f"{SCENARIO}[forged_promise_shuts_nobody_out]",
        why_named=NO_FORGERY,
    ),
    Mutant(
        "any-members-are-installed",
        "R25",
        "members are installed only if changes lead to them from those before",
        (
            Edit(
                "_installed",
                "flaw_of(configuration) is not None or not may_follow(ours, configuration)",
                "flaw_of(configuration) is not None",
            ),
        ),
        turns_red="tests/consensus/test_pure_replacing.py::"
        "test_members_that_nobody_can_have_decided_are_not_installed",
        why_named=NO_FORGERY,
    ),
    Mutant(
        "anything-is-wal",
        "R25",
        "an append is refused if a page in it begins with bytes that begin no WAL page",
        (Edit("payload_flaw", "flaw_of_wal is None", "True"),),
        turns_red="tests/safekeeper/test_no_wal.py::"
        "test_an_append_that_is_no_wal_is_not_written[False]",
        why_named=NO_FORGERY,
    ),
    Mutant(
        "anything-is-wal-on-the-fast-path",
        "R25",
        "the fast path of an append refuses what the slow path does",
        (FastEdit("if knows_pages and", "if False and", FAST_FRAMES),),
        turns_red="tests/safekeeper/test_no_wal.py::"
        "test_an_append_that_is_no_wal_is_not_written[True]",
        why_named=NO_FORGERY,
    ),
)
