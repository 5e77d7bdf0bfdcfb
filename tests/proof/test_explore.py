"""The exhaustive exploration as a test: small worlds, and what makes its answer worth something."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import permutations
from random import Random

import pytest

from tests.proof.explore import fast_step
from tests.proof.explore.bounds import Bounds
from tests.proof.explore.breadth_first import explore
from tests.proof.explore.explored_acceptor import AcceptorNode
from tests.proof.explore.explored_world import NOBODY, Draft, State, World
from tests.proof.explore.runs import LARGE, SMALL
from tests.proof.explore.tiny_wal import FIRST, LAST, OVERWRITE, Mixture, byte, record_end
from tests.proof.sim.oracle import Violation
from tests.support.fast import NEEDS_FAST_PATH
from walkeeper_common.history import History
from walkeeper_common.lsn import Lsn
from walkeeper_common.quorum import Configuration, MemberSet
from walkeeper_common.wire.messages import VoteResponse
from walkeeper_proposer.consensus.campaign import Campaign
from walkeeper_proposer.consensus.expected_stream import ExpectedStream, expected_stream
from walkeeper_proposer.consensus.proposer import Proposer
from walkeeper_proposer.consensus.term_history import shortened

TINY = Bounds(terms=2, campaigns=2, proposers=1, records=1, crashes=1, breaks=0, votes_at_once=True)


# Each of these takes 5 s and more. `make prove` explores all worlds, and the soak does it, too.
LONG = (
    *("four-terms", "three-terms", "aborted-records", "slow-disks", "two-proposers-half-records"),
    *("two-proposers", "five-acceptors", "members", "late-connections", "zones-of-two-and-two"),
    "members-two-zones-to-none",
)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.soak] if n in LONG else []) for n in SMALL]
)
def test_every_state_of_a_small_world_holds(name: str) -> None:
    result = explore(SMALL[name])
    assert result.violation is None, result.story
    assert not result.broken and result.is_exhausted
    assert result.states > 1000


def test_no_leader_stops_without_a_greater_ballot() -> None:
    """A leader remembers what it sent on connections that were lost, and so in the exploration."""
    result = explore(replace(TINY, crashes=0, breaks=1, takes_halves=False, shows_commits=False))
    assert result.violation is None, result.story
    assert result.is_exhausted and result.states == 4488


def test_states_that_differ_only_in_who_is_who_are_one() -> None:
    world = World(Bounds(terms=2, campaigns=2, records=1, votes_at_once=True, lates=1))
    random = Random(5)
    for state in some_states(world, random, count=300):
        order = random.choice(list(permutations(range(3))))
        assert world._state(renamed(world, world.draft(state), order)) == state


def some_states(world: World, random: Random, *, count: int) -> list[State]:
    """Collect states on random walks from the beginning."""
    states: list[State] = []
    while len(states) < count:
        state = world.initial
        for _ in range(25):
            nexts = [after for _, after in world.successors(state)]
            states.append(state)
            if not nexts:
                break
            after = random.choice(nexts)
            assert not isinstance(after, Violation), f"{after}"
            state = after
    return states


def renamed(world: World, draft: Draft, order: tuple[int, ...]) -> Draft:
    """Return the draft in which acceptor `order[i]` is called i."""
    return Draft(
        acceptors=[draft.acceptors[old] for old in order],
        proposers=[p if p == NOBODY else world.table.permuted(p, order) for p in draft.proposers],
        queues=[[row[old] for old in order] for row in draft.queues],
        late_at=NOBODY if draft.late_at == NOBODY else order.index(draft.late_at),
        late=draft.late,
        chain=draft.chain,
        used=draft.used,
    )


def test_an_acceptor_that_forgets_a_written_record_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A disk that loses what it had synced: the oracle sees it, with the shortest story."""
    honest = AcceptorNode._crash

    def crash(node: AcceptorNode, kept_bytes: int) -> None:
        node.wal = node.wal[:-2]
        honest(node, kept_bytes)

    monkeypatch.setattr(AcceptorNode, "_crash", crash)
    result = explore(TINY)
    assert result.violation is not None
    assert result.story[-1][0] in ("crash", "start")
    assert len(result.story) < 12


@NEEDS_FAST_PATH
def test_a_fast_path_that_ends_elsewhere_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its template counts one ack as a quorum, and the core does not."""

    def hasty(core: Proposer) -> ExpectedStream | None:
        expected = expected_stream(core)
        return expected and replace(expected, sets=tuple((1, own) for _, own in expected.sets))

    monkeypatch.setattr("tests.proof.explore.fast_step.expected_stream", hasty)
    result = explore(SMALL["two-proposers"], states_max=10_000)
    assert result.violation is not None and result.violation.startswith("Fast path: commits ")


@NEEDS_FAST_PATH
def test_wal_of_the_fast_path_that_differs_by_a_byte_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its appends have another restart_lsn."""

    def other(core: Proposer) -> ExpectedStream | None:
        expected = expected_stream(core)
        return expected and replace(
            expected, append=expected.append[:68] + b"\x07" + expected.append[69:]
        )

    monkeypatch.setattr("tests.proof.explore.fast_step.expected_stream", other)
    result = explore(SMALL["members-two-acks-to-one"], states_max=10_000)
    assert result.violation is not None and result.violation.startswith("Fast path: ")
    assert result.story[-1][0] == "write"


@NEEDS_FAST_PATH
def test_a_report_that_the_fast_path_does_not_make_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The primary's side of it makes all reports: none is left to the shell."""
    reported = list[Lsn]()
    monkeypatch.setattr(fast_step._Led, "reported", lambda _, lsn, __: reported.append(lsn))
    result = explore(SMALL["members-two-acks-to-one"], states_max=10_000)
    assert result.violation is not None and result.violation.startswith("Fast path: ")
    assert reported and result.story[-1][0] in ("deliver", "command")


def test_two_configurations_of_one_generation_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A vote quorum of one of two decides, so the new members and the cancel are both decided."""
    replacing = "walkeeper_proposer.consensus.members.changing"
    for step in ("learning", "filling"):
        monkeypatch.setattr(f"{replacing}.{step}", lambda *_: (True, 0))
    world = replace(SMALL["members"], commands=("replace", "cancel"), terms=0, campaigns=0)
    assert explore(world).violation is None

    def suffices(self: MemberSet, names: Collection[str | None]) -> bool:
        return sum(m in names for m in self.members) >= self.vote_quorum

    monkeypatch.setattr(MemberSet, "elects", suffices)
    monkeypatch.setattr(MemberSet, "commits", suffices)
    result = explore(world)
    assert result.violation is not None and result.violation.startswith("Successor: ")
    assert [action[0] for action in result.story].count("command") > 5


@pytest.mark.soak
def test_new_members_that_lack_what_the_old_ones_committed_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No leader with the joint members has committed before the new ones are final."""
    replacing = "walkeeper_proposer.consensus.members.changing"
    monkeypatch.setattr(f"{replacing}.filling", lambda *_: (True, 0))
    world = replace(SMALL["members"], terms=2, campaigns=2)
    result = explore(world, states_max=400_000)
    assert result.violation is not None and result.violation.startswith("Acknowledged: ")


def test_an_ack_quorum_that_is_final_before_the_joint_commit_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of two has what was committed with one acknowledgement, and the other one elects."""
    monkeypatch.setattr(
        "walkeeper_proposer.consensus.members.changing.filling", lambda *_: (True, None)
    )
    result = explore(SMALL["members-one-ack-to-two"])
    assert result.violation is not None and result.violation.startswith("Acknowledged: ")


@pytest.mark.soak
def test_a_history_folded_past_what_all_members_have_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A member that was away keeps WAL of a dead leader, where others were committed."""

    def hasty(members: Configuration, donor: VoteResponse, campaign: Campaign) -> History:
        return shortened(members, replace(donor, restart_lsn=donor.record_lsn), campaign)

    monkeypatch.setattr("walkeeper_proposer.consensus.leadership.shortened", hasty)
    world = replace(LARGE["folding-four-terms"], records=1, shows_commits=True)
    result = explore(world, states_max=100_000)
    assert result.violation is not None and result.violation.startswith("Committed: ")
    assert len(result.story) < 14


def test_a_core_that_breaks_is_told_and_does_not_end_the_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    where = "walkeeper_proposer.consensus.leadership.Leader.on_wal"
    monkeypatch.setattr(where, lambda *_: [].pop())
    result = explore(TINY)
    assert result.is_exhausted
    assert list(result.broken) == ["proposer: IndexError: pop from empty list"]


def test_a_record_ends_with_its_last_byte_or_not_at_all() -> None:
    first, last, again = byte(FIRST, 1), byte(LAST, 1), byte(OVERWRITE, 2)
    whole = first + last
    assert record_end(whole + first) == 2
    assert record_end(whole + first + again) == 2  # an aborted record ends nothing by itself
    assert record_end(whole + first + again + byte(LAST, 2)) == 5
    with pytest.raises(Mixture):
        record_end(first + byte(LAST, 3))
