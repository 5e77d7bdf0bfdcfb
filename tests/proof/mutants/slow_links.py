"""R26: progress on any link."""

from __future__ import annotations

from tests.proof.mutants.mutant import Edit, Mutant

TESTS = "tests/proposer/test_slow_links.py::"
NO_BANDWIDTH = "the simulated network delays messages, and has no bandwidth"

SLOW_LINKS = (
    Mutant(
        "late-append-is-sent-as-long-again",
        "R26",
        "an append that was not acknowledged in time is sent again smaller",
        (
            Edit(
                "Member.lose", "max(self.append_bytes // 2, APPEND_BYTES_MIN)", "self.append_bytes"
            ),
        ),
        turns_red=TESTS + "test_a_safekeeper_without_signs_of_life_gets_shorter_appends[8000]",
        why_named=NO_BANDWIDTH,
    ),
    Mutant(
        "short-appends-for-good",
        "R26",
        "appends grow again when they arrive in time",
        (Edit("Member.grow", "min(self.append_bytes * 2, APPEND_BYTES_MAX)", "self.append_bytes"),),
        turns_red=TESTS + "test_a_link_that_became_fast_gets_long_appends_again",
        why_named=NO_BANDWIDTH,
    ),
    Mutant(
        "what-others-get-goes-to-a-slow-link",
        "R26",
        "an append that was made for others is not sent where it is too long",
        (Edit("Feeder.feed_all", "len(last.payload) <= member.append_bytes", "True"),),
        turns_red="tests/proposer/test_feeding.py::test_an_append_of_others_is_cut_for_a_slow_link",
        why_named=NO_BANDWIDTH,
    ),
    Mutant(
        "parts-of-messages-are-no-life",
        "R26",
        "bytes of a message that is not complete are life",
        (
            Edit(
                "Member.tick",
                "self.silent_ticks = 0 if self.link in receiving else self.silent_ticks + 1",
                "self.silent_ticks += 1",
            ),
        ),
        turns_red="tests/consensus/test_scenarios.py::test_scenario[received_bytes_are_life]",
        why_named=NO_BANDWIDTH,
    ),
    Mutant(
        "full-member-gets-all",
        "R16",
        "a safekeeper that had no space gets one append until it has taken one",
        (Edit("Member.wait_for_space", "self.is_probed = True"),),
        turns_red="tests/consensus/test_scenarios.py::"
        "test_scenario[full_safekeeper_is_asked_again]",
        why_named=NO_BANDWIDTH,
    ),
    Mutant(
        "no-signs-of-life",
        "R26",
        "a proposer gets a sign of life while its append still arrives",
        (
            Edit(
                "Acceptor.on_tick",
                "[Send(one, acceptor_answers.SIGN_OF_LIFE) for one in sorted(receiving)]",
                "[]",
            ),
        ),
        turns_red=TESTS + "test_a_link_carries_what_it_can_on_one_connection[8000]",
        why_named=NO_BANDWIDTH,
    ),
)
