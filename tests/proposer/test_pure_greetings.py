"""Members that may take part, a leader elsewhere, and a greeting's log: all small cases."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product

import pytest

from tests.support.scenario_words import (
    CREATION_LSN,
    LOG_UUID,
    SYSTEM_ID,
    configuration_of,
    incarnation_of,
)
from walkeeper_common.history import NO_BALLOT, Ballot, Fragment
from walkeeper_common.quorum import Configuration, LogKind
from walkeeper_common.wire.messages import AcceptorGreeting, ProposerGreeting
from walkeeper_proposer.consensus.campaign import Campaign
from walkeeper_proposer.consensus.greetings import greeting_for, live_elsewhere, unwelcome
from walkeeper_safekeeper.consensus.durable import Durable
from walkeeper_safekeeper.consensus.greeting_check import other_log

CONFIGURATION = configuration_of(3)
CREATION = Fragment(NO_BALLOT, CREATION_LSN, 1, False, CONFIGURATION.members, 2)
LATER = replace(CREATION, ballot=Ballot(1, b"x" * 16))
X, Y = Ballot(1, b"x" * 16), Ballot(2, b"y" * 16)


def greeting(
    number: int, configuration: Configuration | None = CONFIGURATION, live: Ballot | None = None
) -> AcceptorGreeting:
    return AcceptorGreeting(
        number, incarnation_of(number), LOG_UUID, configuration, live or NO_BALLOT, (CREATION,),
        CREATION_LSN, CREATION_LSN, CREATION_LSN, CREATION_LSN, live,
    )  # fmt: skip


def test_somebody_is_live_who_may_have_an_ack_quorum() -> None:
    """R20, literally: (those that say so + those out of reach) >= a, and one says so."""
    checked = 0
    for members in range(1, 6):
        for ack_quorum in range(1, members + 1):
            configuration = configuration_of(members, ack_quorum)
            for reached in range(members + 1):
                for lives in product((None, X, Y), repeat=reached):
                    greeted = [greeting(i + 1, configuration, live) for i, live in enumerate(lives)]
                    may = {
                        ballot
                        for ballot in (X, Y)
                        if ballot in lives and lives.count(ballot) + members - reached >= ack_quorum
                    }
                    found = live_elsewhere(greeted, configuration)
                    assert found == max(may, default=None), f"{members=} {ack_quorum=} {lives=}"
                    checked += 1
    assert checked > 1000


def test_one_that_can_commit_is_never_overlooked() -> None:
    """For any reach, if an ack quorum follows X and one of those greets us, X is live."""
    for members in range(1, 6):
        for ack_quorum in range(1, members + 1):
            configuration = configuration_of(members, ack_quorum)
            everybody = range(1, members + 1)
            for hearing in combinations(everybody, ack_quorum):
                for reached in range(1, members + 1):
                    for met in combinations(everybody, reached):
                        if not set(met) & set(hearing):
                            continue
                        greeted = [
                            greeting(i, configuration, X if i in hearing else None) for i in met
                        ]
                        assert live_elsewhere(greeted, configuration) == X, f"{hearing=} {met=}"


def test_only_configured_members_of_this_log_may_take_part() -> None:
    welcome = greeting(1)
    assert unwelcome(welcome, None, twin=False) is None
    assert unwelcome(welcome, CONFIGURATION, twin=False) is None
    cases = [
        (greeting(1, None), None, False, "not configured"),
        (replace(welcome, incarnation=bytes(16)), None, False, "another incarnation"),
        (greeting(4), None, False, "another incarnation"),
        (greeting(1, replace(CONFIGURATION, generation=2)), CONFIGURATION, False, "another log or"),
        (welcome, CONFIGURATION, True, "two of the addresses"),
        (replace(welcome, history=()), CONFIGURATION, False, "no safekeeper can have"),
        (replace(welcome, history=(LATER, CREATION)), None, False, "no safekeeper can have"),
    ]
    for unwanted, known, twin, said in cases:
        text = unwelcome(unwanted, known, twin=twin)
        assert text is not None and said in text, f"{text=} {said=}"


OURS = Durable(1, incarnation_of(1), LOG_UUID, CONFIGURATION)
FULL = ProposerGreeting(
    1, "main", LOG_UUID, SYSTEM_ID, 1 << 20, "15.18", b"p" * 16, LogKind.PHYSICAL, "", None
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"protocol_version": 2}, "protocol version"),
        ({"log_uuid": b"M" * 16}, "is log"),
        ({"system_id": 8}, "system identifier"),
        ({"segment_bytes": 1 << 24}, "segments"),
        ({"kind": LogKind.LOGICAL}, "is physical: start its proposer without --logical"),
    ],
)
def test_a_greeting_about_another_log_is_refused(changes: dict[str, object], said: str) -> None:
    text = other_log(replace(FULL, **changes), OURS)  # type: ignore[arg-type]  # of all types
    assert text is not None and said in text


def test_a_greeting_with_unknown_fields_is_of_no_other_log() -> None:
    assert other_log(FULL, OURS) is None
    without_primary = greeting_for(Campaign("main", b"p" * 16, 3), None, None)
    assert (without_primary.system_id, without_primary.log_uuid) == (0, bytes(16))
    assert other_log(without_primary, OURS) is None
    assert other_log(replace(FULL, system_id=8), Durable(1, incarnation_of(1), LOG_UUID)) is None
