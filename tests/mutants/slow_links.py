"""R26: progress on any link."""

from __future__ import annotations

from tests.mutants.mutant import PROPOSER, SAFEKEEPER, Edit, Mutant

ACCEPTOR = SAFEKEEPER + "consensus/acceptor.py"
FEEDING = PROPOSER + "consensus/feeding.py"
PROGRESS = PROPOSER + "consensus/progress.py"
TESTS = "tests/proposer/test_slow_links.py::"

SLOW_LINKS = (
    Mutant(
        "late-append-is-sent-as-long-again",
        "26",
        "an append that was not acknowledged in time is sent again smaller",
        (Edit(PROGRESS, "max(self.append_bytes // 2, APPEND_BYTES_MIN)", "self.append_bytes"),),
        turns_red=TESTS + "test_a_safekeeper_without_signs_of_life_gets_shorter_appends[8000]",
    ),
    Mutant(
        "short-appends-for-good",
        "26",
        "appends grow again when they arrive in time",
        (Edit(PROGRESS, "min(self.append_bytes * 2, APPEND_BYTES_MAX)", "self.append_bytes"),),
        turns_red=TESTS + "test_a_link_that_became_fast_gets_long_appends_again",
    ),
    Mutant(
        "what-others-get-goes-to-a-slow-link",
        "26",
        "an append that was made for others is not sent where it is too long",
        (
            Edit(
                FEEDING,
                "                and len(last.payload) <= member.append_bytes\n",
                "",
            ),
        ),
        turns_red="tests/proposer/test_feeding.py::test_an_append_of_others_is_cut_for_a_slow_link",
    ),
    Mutant(
        "parts-of-messages-are-no-life",
        "26",
        "bytes of a message that is not complete are life",
        (
            Edit(
                PROGRESS,
                "        self.silent_ticks = 0 if self.link in receiving else "
                "self.silent_ticks + 1\n",
                "        self.silent_ticks += 1\n",
            ),
        ),
        turns_red="tests/test_scenarios.py::test_scenario[received_bytes_are_life]",
    ),
    Mutant(
        "no-signs-of-life",
        "26",
        "a proposer whose append is still arriving hears that it is",
        (
            Edit(
                ACCEPTOR,
                "[Send(one, answers.SIGN_OF_LIFE) for one in sorted(receiving)]",
                "[]",
            ),
        ),
        turns_red=TESTS + "test_a_link_carries_what_it_can_on_one_connection[8000]",
    ),
)
