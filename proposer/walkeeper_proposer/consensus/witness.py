"""Is this leader the newest copy of itself? A member on another connection is the witness. Pure.

A machine may be set back to an image with its memory. Then it has its ballot still, and may write
WAL under it that differs from what it has written since the image. The bytes of a voter tell that
only if the voter has followed since (own_wal.py). A voter that was away has nothing to compare.
It would take the new WAL, so two logs would differ under one ballot. An election could choose the
wrong one (scenarios/leader_from_a_memory_image_needs_a_witness.txt).

An image has no connection that lives, for the peers went on without it. So a voter on a connection
newer than our ballot waits for another member's answer. That one's connection belongs to this term
and stands. A leader without any starts over with a new ballot, and the election finds what it has
forgotten. A candidate asks for no votes on a connection that is newer than its ballot. The only
member of a log needs no witness: no WAL of this ballot can be elsewhere.

A refused append costs no connection (scenarios/full_disks_everywhere_keep_the_leader.txt).

A number in ProposerElected tells less. An image knows the numbers of all older connections.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from walkeeper_proposer.consensus.own_wal import Forgotten
from walkeeper_proposer.consensus.progress import Member, Stage
from walkeeper_proposer.consensus.proposer_events import Effect

Steps: TypeAlias = Callable[..., list[Effect]]  # for a member; raises Forgotten or Corrupt

NO_WITNESS = (
    "no connection of this term is left that shows that this machine was not set back to an older "
    "image"
)


def can_answer(member: Member) -> bool:
    """Return True if its connection belongs to this term, so that its answer is that of a witness.

    The leader asks a member without space for its vote again, and the answer follows (R16)."""
    stands = member.stage in (Stage.GREETED, Stage.VOTING) and not member.is_late
    return stands or member.stage is Stage.STREAMING


def witnesses_for(member: Member, members: Sequence[Member]) -> list[Member]:
    """Return the others that may answer. Raises Forgotten if there is none."""
    able = [m for m in members if m is not member and can_answer(m)]
    if not able:
        raise Forgotten(f"safekeeper {member.name} is back, and {NO_WITNESS}")
    return able


def shown_by(witness: Member, members: Sequence[Member]) -> list[Member]:
    """Return the late voters that may be taken now that this member has answered."""
    return [m for m in members if m.awaits_witness and m is not witness]


def lacks_witness(members: Sequence[Member]) -> bool:
    """Return True if a late voter waits, and nobody is left who could answer."""
    waits = any(m.awaits_witness for m in members)
    return waits and not any(can_answer(m) for m in members)
