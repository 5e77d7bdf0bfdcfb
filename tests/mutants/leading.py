"""Our own, in what an elected proposer does."""

from __future__ import annotations

from tests.mutants.mutant import PROPOSER, Edit, Mutant

CONSENSUS = PROPOSER + "consensus/proposer.py"
FEEDING = PROPOSER + "consensus/feeding.py"
LEADERSHIP = PROPOSER + "consensus/leadership.py"
PRIMARY_CHECK = PROPOSER + "consensus/primary_check.py"

LEADING = (
    Mutant(
        "nobody-is-fed-by-a-donor",
        "feeding",
        "a safekeeper behind the window is fed by a donor",
        (
            Edit(
                FEEDING,
                "        if member.attached and member.next_lsn < window.begin_lsn:",
                "        if False:",
            ),
        ),
    ),
    Mutant(
        "paused-for-good",
        "leadership",
        "a primary that was paused is read again when there is room",
        (
            Edit(
                LEADERSHIP,
                "        return [PauseStreaming() if is_full else ResumeStreaming()]",
                "        return [PauseStreaming()] if is_full else []",
            ),
        ),
    ),
    Mutant(
        "streams-from-the-terms-start",
        "leadership",
        "a new connection to the primary goes on where the last one ended",
        (
            Edit(
                LEADERSHIP,
                "        at_lsn = self.window.end_lsn\n        timeline",
                "        at_lsn = self.window.begin_lsn\n        timeline",
            ),
        ),
    ),
    Mutant(
        "what-all-lost-is-waited-for",
        "leadership",
        "half a record that all have lost needs a new election",
        (
            Edit(
                LEADERSHIP,
                "        if not enough or max(ends) >= self.window.begin_lsn:",
                "        if True:",
            ),
        ),
        turns_red="tests/test_scenarios.py::test_scenario[vanished_donor_needs_an_election]",
    ),
    Mutant(
        "lost-link-still-counts",
        "consensus",
        "what a lost safekeeper had acknowledged is not counted until it attaches again",
        (
            Edit(
                CONSENSUS,
                "        member.lose()\n        for other in self.members:\n",
                "        for other in self.members:\n",
            ),
            Edit(LEADERSHIP, "        member.lose()\n        return", "        return"),
            Edit(
                CONSENSUS,
                "    def on_link_up(self, member: Member) -> list[Effect]:\n"
                "        member.lose()\n",
                "    def on_link_up(self, member: Member) -> list[Effect]:\n",
            ),
        ),
        turns_red="tests/test_scenarios.py::test_scenario[ack_of_a_lost_connection_does_not_count]",
    ),
    Mutant(
        "no-verdict-is-a-pass",
        "primary_check",
        "a source that went away is no verdict",
        (
            Edit(
                PRIMARY_CHECK,
                "            self.verdict, self.text = Verdict.UNKNOWN, text\n",
                "            self.verdict, self.text = Verdict.PASSED, text\n",
            ),
        ),
    ),
    Mutant(
        "settled-without-a-quorum",
        "leadership",
        "settle waits until an ack quorum has the log's end",
        (
            Edit(
                LEADERSHIP,
                "        if self.purpose is Purpose.ATTACH or self.commit_lsn < self.start_lsn:",
                "        if self.purpose is Purpose.ATTACH:",
            ),
            Edit(
                LEADERSHIP,
                "        if not self.configuration.commits([m.name for m in knowing]):\n"
                "            return None\n",
            ),
        ),
    ),
)
