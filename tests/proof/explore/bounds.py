"""How large a world is explored, and what may go wrong in it."""

from __future__ import annotations

from dataclasses import dataclass, fields

from walkeeper_common.quorum import MemberSet


@dataclass(frozen=True, slots=True)
class Bounds:
    """Everything within these is tried, in every order.

    terms         the greatest term; each may be taken by either proposer, or by both
    campaigns     how often a proposer process is started, and campaigns
    records       how many records long a log may grow; each is written whole or halved.
    votes_at_once whether a candidate's votes all come at one time, or among other things
    crashes       crashes of safekeepers; each loses WAL not synced, between any two operations
    breaks        breaks of connections; messages under way are lost, and both sides notice
    lates         broken connections that go on delivering what was sent before
    takes_halves  a primary's WAL arrives also in halves of a record
    aborts        a primary may have crashed inside a record: the next one ends it there, or goes
                  on with it
    folds         a leader folds each history, as far as all members have its WAL
    trims         a leader forgets WAL that a quorum has, and reads it back from a donor
    slow_disks    other messages arrive between a write and its fdatasync
    shows_commits safekeepers learn commit_lsn, and so show it to readers
    lazy_marks    commit_lsn is written to the control file at any time, not only when it must
    newcomers     how many of the acceptors are no members yet (member_world.py)
    closes        how often a command closes the log (M7); a campaign each
    commands      that change members, each of which may begin at any time: replace, cancel, add
                  (the newcomers), remove (the last member), set-ack-quorum, set-ack-zones
    late          newcomers' logs begin late, and are filled at any time or never (M5)
    next_ack      the ack quorum that add, remove and set-ack-quorum want
    zones         the zone of each acceptor, in the order of the labels, or none
    ack_zones     from how many zones acknowledgements come, or 0
    next_zones    the number of zones that set-ack-zones wants
    rounds        the register's rounds in one generation; a command that needs more stands still
    """

    acceptors: int = 3
    ack_quorum: int = 2
    proposers: int = 2
    terms: int = 3
    campaigns: int = 3
    records: int = 2
    votes_at_once: bool = False
    crashes: int = 1
    breaks: int = 1
    lates: int = 0
    takes_halves: bool = True
    aborts: bool = False
    folds: bool = False
    trims: bool = False
    slow_disks: bool = False
    shows_commits: bool = True
    lazy_marks: bool = False
    closes: int = 0
    newcomers: int = 0
    commands: tuple[str, ...] = ()
    rounds: int = 1
    next_ack: int = 2
    late: bool = False
    zones: tuple[str, ...] = ()
    ack_zones: int = 0
    next_zones: int = 0

    @property
    def members(self) -> int:
        return self.acceptors - self.newcomers

    @property
    def vote_quorum(self) -> int:
        return self.members - self.ack_quorum + 1

    @property
    def voters_min(self) -> int:
        members = tuple(map(str, range(self.members)))
        return MemberSet(members, self.ack_quorum, self.ack_zones, self.zones).voters_min

    def __str__(self) -> str:
        values = ((f.name, getattr(self, f.name)) for f in fields(self))
        return " ".join(f"{name}={_shown(value)}" for name, value in values)


def _shown(value: int | tuple[str, ...]) -> str:
    return ",".join(value) or "none" if isinstance(value, tuple) else str(int(value))
