"""R25: nothing grows without a way out, and what no run of the protocol makes is refused."""

from __future__ import annotations

from tests.mutants.mutant import COMMON, PROPOSER, SAFEKEEPER, Edit, Mutant

GREETINGS = PROPOSER + "consensus/greetings.py"
HISTORY = COMMON + "history.py"
LEADERSHIP = PROPOSER + "consensus/leadership.py"
REGISTER = SAFEKEEPER + "consensus/member_register.py"
FULL = "        if size <= (most if is_way_out else most - HISTORY_RESERVE):\n"
FULL_TESTS = "tests/proposer/test_full_history.py::test_"
SCENARIO = "tests/test_scenarios.py::test_scenario[{}]"

BOUNDS = (
    Mutant(
        "history-without-a-reserve",
        "25",
        "a leader is refused while there is room for what makes the history short again",
        (Edit(LEADERSHIP, FULL, "        if size <= most:\n"),),
        turns_red=FULL_TESTS + "a_leader_for_a_primary_is_refused_while_there_is_room",
    ),
    Mutant(
        "no-way-out-of-a-full-history",
        "25",
        "settle, replacements and elections with all members may use the reserve",
        (Edit(LEADERSHIP, FULL, "        if size <= most - HISTORY_RESERVE:\n"),),
        turns_red=FULL_TESTS + "what_makes_it_short_again_still_works",
    ),
    Mutant(
        "any-term-is-believed",
        "25",
        "a jump of a term by more than 2^32 is refused as forged",
        (Edit(HISTORY, "ballot.term - known.term > TERM_JUMP_MAX", "False"),),
        turns_red=SCENARIO.format("forged_ballot_is_refused"),
    ),
    Mutant(
        "forged-promise-stops-candidates",
        "25",
        "a safekeeper with a promise that no candidate reaches takes no part",
        (
            Edit(
                GREETINGS,
                "    if is_forged(greeting.ballot, greeting.history[-1].ballot):",
                "    if False:",
            ),
        ),
        turns_red=SCENARIO.format("forged_promise_shuts_nobody_out"),
    ),
    Mutant(
        "any-members-are-installed",
        "25",
        "members are installed only if changes lead to them from those before",
        (Edit(REGISTER, " or not may_follow(ours, configuration):", ":"),),
        turns_red="tests/test_pure_replacing.py::"
        "test_members_that_nobody_can_have_decided_are_not_installed",
    ),
)
