"""Creation in two phases: the same values again change nothing, other values are refused.

docs/protocol.md R17: a promise is never overwritten, and there is no vote before configure.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.scenario_words import LOG_UUID, configuration_of, incarnation_of
from walkeeper_common.cluster_name import check_cluster_name
from walkeeper_common.errors import Refused
from walkeeper_common.history import NO_BALLOT, Ballot, is_well_formed
from walkeeper_common.lsn import Lsn
from walkeeper_common.quorum import Configuration
from walkeeper_common.wire.requests import PrepareLog
from walkeeper_safekeeper.consensus.creation import configured, prepared, state_of
from walkeeper_safekeeper.consensus.durable import Durable, unreached_start

CONFIGURATION = configuration_of(3)
ASK = PrepareLog("main", LOG_UUID)


def fresh() -> Durable:
    return prepared(None, ASK, acceptor_id=1, incarnation=incarnation_of(1))


def test_prepare_keeps_the_incarnation_that_is_durable_already() -> None:
    first = fresh()
    assert first.configuration is None and first.ballot == NO_BALLOT and not first.history
    again = prepared(first, ASK, acceptor_id=1, incarnation=incarnation_of(77))
    assert again is first


def test_prepare_refuses_another_log_under_the_same_name() -> None:
    with pytest.raises(Refused, match="holds log"):
        prepared(fresh(), PrepareLog("main", b"M" * 16), acceptor_id=1, incarnation=bytes(16))


def test_configure_makes_a_log_that_may_vote() -> None:
    durable = configured(fresh(), CONFIGURATION)
    assert durable.configuration == CONFIGURATION and is_well_formed(durable.history)
    (creation,) = durable.history
    assert (creation.ballot, creation.start_lsn) == (NO_BALLOT, CONFIGURATION.creation_lsn)
    assert durable.reached_lsn == durable.commit_lsn == CONFIGURATION.creation_lsn
    assert unreached_start(durable) > CONFIGURATION.creation_lsn


def test_configure_again_overwrites_no_promise() -> None:
    voted = replace(configured(fresh(), CONFIGURATION), ballot=Ballot(5, b"p" * 16))
    assert configured(voted, CONFIGURATION) is voted
    assert prepared(voted, ASK, acceptor_id=1, incarnation=bytes(16)) is voted


OTHERS: list[Configuration] = [
    replace(CONFIGURATION, generation=2),
    replace(CONFIGURATION, log_uuid=b"M" * 16),
    replace(CONFIGURATION, system_id=8),
    replace(CONFIGURATION, segment_bytes=2 << 20, creation_lsn=Lsn(2 << 20)),
    replace(CONFIGURATION, server_version="16.0"),
    replace(CONFIGURATION, creation_lsn=Lsn(2 << 20)),
    replace(CONFIGURATION, timeline=2),
    replace(CONFIGURATION, members=CONFIGURATION.members[:2]),
    replace(CONFIGURATION, ack_quorum=3),
]


@pytest.mark.parametrize("other", OTHERS)
def test_configure_with_any_other_value_is_refused(other: Configuration) -> None:
    with pytest.raises(Refused, match="another configuration"):
        configured(configured(fresh(), CONFIGURATION), other)


IMPOSSIBLE: list[tuple[Configuration, str]] = [
    (replace(CONFIGURATION, log_uuid=b"M" * 16), "not prepared"),
    (replace(CONFIGURATION, members=CONFIGURATION.members[1:]), "not prepared"),
    (replace(CONFIGURATION, ack_quorum=0), "impossible"),
    (replace(CONFIGURATION, ack_quorum=4), "impossible"),
    (replace(CONFIGURATION, members=(*CONFIGURATION.members, CONFIGURATION.members[0])), "quorum"),
    (replace(CONFIGURATION, segment_bytes=3 << 20, creation_lsn=Lsn(3 << 20)), "cannot start"),
    (replace(CONFIGURATION, segment_bytes=1 << 19), "cannot start"),
    (replace(CONFIGURATION, creation_lsn=Lsn((1 << 20) + 8)), "cannot start"),
]


@pytest.mark.parametrize(("configuration", "said"), IMPOSSIBLE)
def test_an_impossible_configuration_is_refused(configuration: Configuration, said: str) -> None:
    with pytest.raises(Refused, match=said):
        configured(fresh(), configuration)


def test_a_member_with_another_incarnation_is_refused() -> None:
    """It lost its disk between the two phases, or is not the one that was prepared."""
    wiped = prepared(None, ASK, acceptor_id=1, incarnation=incarnation_of(9))
    with pytest.raises(Refused, match="not prepared"):
        configured(wiped, CONFIGURATION)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-a", "a b", "a\n", "a\0", "ä", "a" * 64])
def test_a_name_that_cannot_be_a_folder_and_a_word_names_no_cluster(name: str) -> None:
    with pytest.raises(Refused):
        check_cluster_name(name)
    with pytest.raises(Refused):
        prepared(None, PrepareLog(name, LOG_UUID), acceptor_id=1, incarnation=bytes(16))


@pytest.mark.parametrize("name", ["main", "0", "A.b-c_d", "a" * 63])
def test_names_of_clusters(name: str) -> None:
    check_cluster_name(name)


def test_the_state_says_which_phase_is_over() -> None:
    nothing, half, whole = None, fresh(), configured(fresh(), CONFIGURATION)
    assert state_of(1, nothing).log_uuid == bytes(16)
    assert (state_of(1, half).log_uuid, state_of(1, half).configuration) == (LOG_UUID, None)
    assert state_of(1, whole).configuration == CONFIGURATION
