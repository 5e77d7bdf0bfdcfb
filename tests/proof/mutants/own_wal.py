"""R24: a vote with one's own ballot is evidence only with content."""

from __future__ import annotations

from tests.proof.mutants.mutant import Edit, Mutant

IMAGE = "tests/proposer/test_memory_image.py::test_"
SCENARIO = "tests/consensus/test_scenarios.py::test_scenario"
BYTES = f"{SCENARIO}[leader_from_a_memory_image_compares_bytes]"
FULL = f"{SCENARIO}[full_disks_everywhere_keep_the_leader]"
NO_IMAGE = "no simulated machine goes back to an image of its memory"
ONE_TOO_MANY = "an election too many costs time and no byte, so no oracle sees it"

OWN_WAL = (
    Mutant(
        "voters-wait-for-each-other",
        "R24",
        "voters that nobody can be compared with need an election",
        (Edit("Leader.lost_by_all", "m.attached or m.comparison is not None", "m.attached"),),
        turns_red="tests/proposer/test_memory_image.py::"
        "test_voters_that_nobody_can_be_compared_with_need_an_election",
        why_named=NO_IMAGE,
    ),
    Mutant(
        "own-ballot-without-content",
        "R24",
        "WAL of our own term that was not acknowledged to us is compared",
        (
            Edit(
                "Leader.elect",
                "vote.history[-1].ballot != self.ballot or vote.flush_lsn <= known_lsn",
                "True",
            ),
        ),
        turns_red=BYTES,
        why_named=NO_IMAGE,
    ),
    Mutant(
        "other-bytes-of-our-term",
        "R24",
        "a leader whose bytes are not what a voter has starts anew",
        (Edit("OwnWalCheck.take", "bytes(self.theirs[:size]) != bytes(ours[:size])", "False"),),
        turns_red=BYTES,
        why_named=NO_IMAGE,
    ),
    Mutant(
        "what-was-sent-is-known",
        "R24",
        "only what was acknowledged to us is known to be ours",
        (Edit("Member._detach", "self.flush_lsn", "self.next_lsn"),),
        turns_red=BYTES,
        why_named=NO_IMAGE,
    ),
    Mutant(
        "a-lost-donor-is-waited-for",
        "R24",
        "ours are read from another donor when the one that was asked is gone",
        (
            Edit(
                "Leader.on_tick",
                "effects += comparison.ask_donor(self.members, self.ballot, self.held_wal)",
                "comparison.ask_donor(self.members, self.ballot, self.held_wal)",
            ),
        ),
        turns_red=BYTES,
        why_named=NO_IMAGE,
    ),
    Mutant(
        "late-voters-need-no-witness",
        "R24",
        "a voter on a connection newer than the ballot waits for a sign of life of another member",
        (
            Edit(
                "Leader.on_late_vote",
                "not member.is_late or len(self.configuration.everyone) == 1",
                "True",
            ),
        ),
        turns_red=IMAGE + "a_safekeeper_that_was_away_takes_nothing_from_an_older_image[1-XYZ]",
        why_named=NO_IMAGE,
    ),
    Mutant(
        "leader-without-connections-goes-on",
        "R24",
        "a leader that has no connection of its term left starts over with a new ballot",
        (Edit("Leader.lost_by_all", "lacks_witness(self.members)", "False"),),
        turns_red=IMAGE + "a_leader_from_an_older_image_is_not_followed[1-]",
        why_named=NO_IMAGE,
    ),
    Mutant(
        "candidate-asks-newer-connections",
        "R24",
        "a candidate asks for no vote on a connection that is newer than its ballot",
        (Edit("Proposer.on_greeting", "self.leader is None and member.is_late", "False"),),
        turns_red=IMAGE + "a_candidate_asks_for_no_vote_on_a_connection_newer_than_its_ballot",
        why_named=NO_IMAGE,
    ),
    Mutant(
        "no-space-drops-the-connection",
        "R16, R24",
        "a refused append is no lost connection: all connections of the term stand",
        (Edit("Member.lacks_space", "code is RejectCode.NO_SPACE", "False"),),
        turns_red=FULL,
        why_named=ONE_TOO_MANY,
    ),
    Mutant(
        "full-disks-are-no-witness",
        "R24",
        "a member without space for WAL is a witness, if its connection belongs to this term",
        (
            Edit(
                "can_answer",
                "stands or member.stage is Stage.STREAMING",
                "member.stage is Stage.STREAMING",
            ),
        ),
        turns_red=FULL,
        why_named=ONE_TOO_MANY,
    ),
    Mutant(
        "taken-late-is-no-witness",
        "R24",
        "a connection that a witness has answered for belongs to this term",
        (
            Edit(
                "Member.start_streaming",
                "self.is_late = self.awaits_witness = False",
                "self.awaits_witness = False",
            ),
        ),
        turns_red=FULL,
        why_named=ONE_TOO_MANY,
    ),
)
