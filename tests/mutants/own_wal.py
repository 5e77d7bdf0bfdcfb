"""R24: a vote with one's own ballot is evidence only with content."""

from __future__ import annotations

from tests.mutants.mutant import PROPOSER, Edit, Mutant

LEADERSHIP = PROPOSER + "consensus/leadership.py"
OWN = PROPOSER + "consensus/own_wal.py"
PROGRESS = PROPOSER + "consensus/progress.py"
IMAGE = "tests/proposer/test_memory_image.py::test_a_leader_from_an_older_image_is_not_followed"
BYTES = "tests/test_scenarios.py::test_scenario[leader_from_a_memory_image_compares_bytes]"

OWN_WAL = (
    Mutant(
        "voters-wait-for-each-other",
        "24",
        "voters that nobody can be compared with need an election",
        (
            Edit(
                LEADERSHIP,
                "for m in self.members if m.attached or m.comparison is not None]",
                "for m in self.members if m.attached]",
            ),
        ),
        turns_red="tests/proposer/test_memory_image.py::"
        "test_voters_that_nobody_can_be_compared_with_need_an_election",
    ),
    Mutant(
        "own-ballot-without-content",
        "24",
        "WAL of our own term that was not acknowledged to us is compared",
        (
            Edit(
                LEADERSHIP,
                "if vote.history[-1].ballot != self.ballot or vote.flush_lsn <= known_lsn:",
                "if True:",
            ),
        ),
        turns_red=IMAGE + "[1-XY]",
    ),
    Mutant(
        "other-bytes-of-our-term",
        "24",
        "a leader whose bytes are not what a voter has starts anew",
        (Edit(OWN, "bytes(self.theirs[:size]) != bytes(ours[:size])", "False"),),
        turns_red=IMAGE + "[1-XY]",
    ),
    Mutant(
        "what-was-sent-is-known",
        "24",
        "only what was acknowledged to us is known to be ours",
        (
            Edit(
                PROGRESS,
                "            self.known_lsn = self.flush_lsn\n",
                "            self.known_lsn = self.next_lsn\n",
            ),
        ),
        turns_red=IMAGE + "[1-XY]",
    ),
    Mutant(
        "a-lost-donor-is-waited-for",
        "24",
        "ours are read from another donor when the one that was asked is gone",
        (
            Edit(
                LEADERSHIP,
                "            effects += comparison.ask_donor(",
                "            comparison.ask_donor(",
            ),
        ),
        turns_red=BYTES,
    ),
)
