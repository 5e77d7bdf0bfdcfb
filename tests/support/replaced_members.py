"""Three members of which the last is replaced by a fourth: what the tests of replacements share."""

from __future__ import annotations

from tests.support.scenario_words import CREATION_LSN, LOG_UUID, configuration_of, incarnation_of
from walkeeper_common.history import NO_BALLOT, Ballot, Fragment
from walkeeper_common.quorum import Configuration, member_name
from walkeeper_common.wire.member_change import final, joint
from walkeeper_safekeeper.consensus.durable import Durable

OLD = configuration_of(3)
CREATION = Fragment(NO_BALLOT, CREATION_LSN, 1, False, OLD.members, 2)
NEWCOMER = member_name(4, incarnation_of(4))
BOTH = joint(OLD, leaving=OLD.members[2], joining=NEWCOMER, address="h4:5454")
NEW = final(BOTH)
B, C = Ballot(1, b"b" * 16), Ballot(2, b"c" * 16)


def durable_of(number: int, configuration: Configuration | None = OLD) -> Durable:
    return Durable(
        number,
        incarnation_of(number),
        LOG_UUID,
        configuration,
        history=(CREATION,),
        commit_lsn=CREATION_LSN,
        restart_lsn=CREATION_LSN,
        reached_lsn=CREATION_LSN,
    )
