"""Elections and commits on the real cores: cases by hand, then all small ones.

The hand-made ones are those of Neon's test_quorum_sanity, with sets of members and quorums instead
of joint configurations; scenarios/quorum_sanity.txt tells the ones with histories.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import pytest

from tests.support.cluster_stage import ClusterStage


@dataclass(frozen=True)
class Case:
    """A reach of `reach` among `members`, with `ack` as the ack quorum, or a majority if 0."""

    members: int
    ack: int
    reach: tuple[int, ...]
    elects: bool
    commits: bool


CASES = (
    Case(3, 0, (1, 2, 3), elects=True, commits=True),
    Case(3, 0, (1, 2), elects=True, commits=True),
    Case(3, 0, (2, 3), elects=True, commits=True),
    Case(3, 0, (1,), elects=False, commits=False),
    Case(1, 0, (1,), elects=True, commits=True),
    Case(2, 0, (1, 2), elects=True, commits=True),
    Case(2, 0, (2,), elects=True, commits=False),
    Case(3, 3, (3,), elects=True, commits=False),
    Case(3, 3, (1, 2), elects=True, commits=False),
    Case(3, 1, (1, 2), elects=False, commits=False),
    Case(5, 0, (1, 3, 5), elects=True, commits=True),
    Case(5, 0, (2, 4), elects=False, commits=False),
    Case(5, 2, (1, 2, 3), elects=False, commits=False),
    Case(5, 2, (2, 3, 4, 5), elects=True, commits=True),
    Case(5, 4, (1, 2), elects=True, commits=False),
    Case(5, 4, (3,), elects=False, commits=False),
    Case(5, 4, (1, 2, 3, 5), elects=True, commits=True),
)


def outcome(members: int, ack: int, wal: list[str], reach: tuple[int, ...]) -> str:
    """Return the outcome that `elections` shows for this set, on a stage of its own."""
    stage = ClusterStage()
    stage.run(f"cluster {members} ack={ack} wal={','.join(wal)} history=1:x@R0")
    return stage.election_of(reach)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_set_of_safekeepers_elects_and_commits_as_its_size_says(case: Case) -> None:
    found = outcome(case.members, case.ack, ["r"] * case.members, case.reach)
    assert (found != "nobody leads") == case.elects, found
    assert found.endswith(", commits") == case.commits, found


@pytest.mark.parametrize("members", range(1, 6))
def test_every_set_that_elects_has_what_every_ack_quorum_had(members: int) -> None:
    numbers = range(1, members + 1)
    for ack in numbers:
        votes = members - ack + 1
        # Flexible Paxos: a set of `votes` has no room beside one of `ack`.
        assert ack + votes > members
        for holders in combinations(numbers, ack):
            wal = ["rs" if number in holders else "r" for number in numbers]
            for size in numbers:
                for reach in combinations(numbers, size):
                    found = outcome(members, ack, wal, reach)
                    if size < votes:
                        assert found == "nobody leads", f"{ack=} {holders=} {reach=}: {found}"
                        continue
                    verb = "commits" if size >= ack else "cannot commit"
                    assert found == f"rs, {verb}", f"{ack=} {holders=} {reach=}: {found}"
