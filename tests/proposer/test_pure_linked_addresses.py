"""A newcomer's link: there while it joins, kept once it is a member, dropped after a cancel."""

from __future__ import annotations

from random import Random

import pytest

from walkeeper_common.addresses import Address, shown_address
from walkeeper_common.lsn import Lsn
from walkeeper_common.quorum import Configuration, LogKind, MemberSet
from walkeeper_common.wire.member_change import cancelled, final, joint, joint_with
from walkeeper_proposer.consensus.campaign import Campaign
from walkeeper_proposer.linked_addresses import LinkedAddresses

GIVEN: tuple[Address, ...] = (("a", 1), ("b", 1), ("c", 1))
FOURTH, FIFTH = ("d", 1), ("e", 1)
MADE = Configuration(
    generation=1,
    log_uuid=b"l" * 16,
    system_id=1,
    segment_bytes=1 << 24,
    server_version="15.4",
    kind=LogKind.PHYSICAL,
    creation_lsn=Lsn(1 << 24),
    timeline=1,
    members=("1#a", "2#b", "3#c"),
    ack_quorum=2,
)
JOINT = joint(MADE, leaving="3#c", joining="4#d", address="d:1")

BY_ID = joint_with(MADE, MemberSet(("1#a", "2#b", "4#d"), 2), "4@d:1")


def test_a_newcomer_is_linked_and_stays_once_it_is_a_member() -> None:
    linked = LinkedAddresses(GIVEN)
    assert linked.follow(None) == linked.follow(MADE) == []
    assert linked.all == GIVEN
    assert "d:1 is to become a member" in linked.follow(JOINT)[0]
    assert linked.all == (*GIVEN, FOURTH)
    assert linked.follow(JOINT) == []
    assert "d:1 has become a member" in linked.follow(final(JOINT))[0]
    following = joint(final(JOINT), leaving="1#a", joining="5#e", address="e:1")
    linked.follow(following)
    linked.follow(final(following))
    assert linked.all == (*GIVEN, FOURTH, FIFTH)


@pytest.mark.parametrize("text", ["d", "d:65536", "d..d:1", "d\0:1"])
def test_a_text_that_is_no_address_ends_no_proposer(text: str) -> None:
    linked = LinkedAddresses(GIVEN)
    (said,) = linked.follow(joint_with(MADE, MemberSet(("1#a", "2#b", "4#d"), 2), f"4@{text}"))
    assert "is no address" in said and "put its address into --safekeepers" in said
    assert linked.all == GIVEN
    linked.follow(final(BY_ID))
    assert linked.all == (*GIVEN, FOURTH)


def test_a_member_that_joined_unseen_is_linked_for_good() -> None:
    linked = LinkedAddresses(GIVEN)
    assert "put it into --safekeepers" in linked.follow(final(JOINT))[0]
    linked.follow(joint(final(JOINT), leaving="1#a", joining="5#e", address="e:1"))
    assert linked.all == (*GIVEN, FOURTH, FIFTH)


def test_a_member_that_leaves_again_loses_its_link() -> None:
    """The configuration keeps its address until another change, and nobody answers there."""
    back = joint_with(final(BY_ID), MADE.present, "4@d:1")
    seen, unseen = LinkedAddresses(GIVEN), LinkedAddresses(GIVEN)
    for configuration in (BY_ID, final(BY_ID), back):
        seen.follow(configuration)
    unseen.follow(final(BY_ID))
    said = ["safekeeper at d:1 is no member any more: its link is dropped"]
    for linked in (seen, unseen):
        assert linked.all == (*GIVEN, FOURTH)
        assert linked.follow(final(back)) == said
        assert linked.all == GIVEN
        assert linked.follow(final(back)) == []
    assert LinkedAddresses(GIVEN).follow(final(back)) == []
    campaign = Campaign("main", b"p" * 16, 3, addresses=frozenset(map(shown_address, GIVEN)))
    assert campaign.needs_other_links(BY_ID) and campaign.needs_other_links(final(BY_ID))
    assert not campaign.needs_other_links(final(back)), (
        "a proposer that waits for this link never leads"
    )


def test_a_cancelled_newcomer_loses_its_link() -> None:
    linked = LinkedAddresses(GIVEN)
    linked.follow(JOINT)
    assert "does not become a member" in linked.follow(cancelled(JOINT))[0]
    assert linked.all == GIVEN


def test_a_newcomer_in_the_place_of_a_lost_one_takes_its_link() -> None:
    linked = LinkedAddresses(GIVEN)
    linked.follow(JOINT)
    linked.follow(joint(JOINT, leaving="3#c", joining="5#e", address="e:1"))
    assert linked.all == (*GIVEN, FIFTH)


def test_an_address_of_the_command_line_is_never_dropped() -> None:
    """The newcomer may be a member's own machine with a new disk."""
    linked = LinkedAddresses(GIVEN)
    same = joint(MADE, leaving="3#c", joining="3#f", address="c:1")
    assert linked.follow(same) == linked.follow(cancelled(same)) == []
    assert linked.all == GIVEN


def test_several_newcomers_join_and_one_of_them_is_given_up() -> None:
    linked = LinkedAddresses(GIVEN)
    five = MemberSet((*MADE.members, "4#d", "5#e"), 3)
    told = linked.follow(joint_with(MADE, five, "4@d:1,5@e:1"))
    assert len(told) == 2 and linked.all == (*GIVEN, FOURTH, FIFTH)
    four = MemberSet((*MADE.members, "4#d"), 3)
    other = joint_with(joint_with(MADE, five, "4@d:1,5@e:1"), four, "4@d:1")
    assert len(linked.follow(other)) == 1 and linked.all == (*GIVEN, FOURTH)
    assert "has become a member" in linked.follow(final(other))[0]
    assert linked.all == (*GIVEN, FOURTH)


def test_a_member_whose_id_was_not_known_loses_its_link_when_it_leaves() -> None:
    """A later change names it, and then it leaves."""
    linked = LinkedAddresses(GIVEN)
    linked.follow(final(JOINT))
    assert linked.all == (*GIVEN, FOURTH)
    begun = joint_with(final(JOINT), MADE.present, "4@d:1")
    assert linked.follow(begun) == []
    assert "is no member any more" in linked.follow(final(begun))[0]
    assert linked.all == GIVEN


def test_a_newcomer_that_was_given_up_between_two_elections_loses_its_link() -> None:
    """The next proposer has linked it, and learns of the cancel before it is elected."""
    linked = LinkedAddresses(GIVEN)
    linked.follow(JOINT)
    shown = frozenset(map(shown_address, linked.all))
    campaign = Campaign("main", b"p" * 16, 4, addresses=shown, linked=linked.members,
                        linked_generation=linked.generation)  # fmt: skip
    assert not campaign.needs_other_links(JOINT)
    assert not campaign.needs_other_links(MADE), "a member that lags does not know of it yet"
    assert campaign.needs_other_links(cancelled(JOINT))
    assert not campaign.needs_other_links(final(JOINT))
    assert linked.follow(MADE) == [] and linked.all == (*GIVEN, FOURTH)
    linked.follow(cancelled(JOINT))
    assert linked.all == GIVEN and linked.members == frozenset()


@pytest.mark.parametrize("seed", range(20))
def test_whoever_greets_first_the_links_come_to_rest(seed: int) -> None:
    """A member that lags shows an older configuration in each life of the proposer."""
    back = cancelled(JOINT)
    again = joint(back, leaving="2#b", joining="5#e", address="e:1")
    chain = (MADE, JOINT, back, again, cancelled(again))
    random, linked = Random(seed), LinkedAddresses(GIVEN)
    newest = random.choice(chain[1:])
    shown = [each for each in chain if each.generation <= newest.generation]
    begun_anew = 0
    for _ in range(10 * len(chain)):
        campaign = Campaign(
            "main", b"p" * 16, 4, addresses=frozenset(map(shown_address, linked.all)),
            linked=linked.members, linked_generation=linked.generation,
        )  # fmt: skip
        greeting = (random.choice(shown), newest)
        other = next((each for each in greeting if campaign.needs_other_links(each)), None)
        if other is not None:
            begun_anew += 1
            linked.follow(other)
    assert begun_anew < len(chain)
    linked.follow(newest)
    newcomer = {JOINT: [FOURTH], again: [FIFTH]}.get(newest, [])
    assert linked.all == (*GIVEN, *newcomer)
