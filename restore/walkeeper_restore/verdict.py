"""The verdict on a file that PostgreSQL requests: whole, a part, absent, gone, or unknown. Pure.

    judge_segment(name, greetings, …) -> Whole | Part | Absent | Gone | Unknown

`greetings` are the answers of the safekeepers about their logs. The rules:

* A whole segment below one safekeeper's commit_lsn is committed (docs/protocol.md R13). No other
  safekeeper needs to answer. The exception is a segment whose last record goes on in the next one
  and has not ended. A leader may still truncate that record. Until it ends, such a segment is a
  part, although all of its bytes are there.
* The end of the log is known from v = n - a + 1 members, because every ack quorum includes one of
  them. The log with the greatest (last log ballot, flush_lsn) among them holds every acknowledged
  commit (R4). The record end of that log is `reach_lsn`.
* Until WAL up to `reach_lsn` is committed, no file is a part or absent. So a restore never leaves
  out a commit that was acknowledged before its request. This holds even if the safekeepers do not
  know yet that it is committed. If no proposer is left to report that to them, `walkeeper settle`
  is needed, as it is before every promotion.
* WAL that all members have removed existed: that is Gone, not Absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from walkeeper_common.errors import WalkeeperError
from walkeeper_common.history import Ballot, History
from walkeeper_common.lsn import LSN_MAX, ZERO_LSN, Lsn, parse_segment_name
from walkeeper_common.operator_text.zones import shown_acks, shown_votes
from walkeeper_common.quorum import Configuration, LogKind, member_name
from walkeeper_common.wire.messages import AcceptorGreeting

LOGICAL_LOG = (
    "the log of this cluster is logical: it keeps decoded changes and no WAL, so no server can be "
    "recovered from it; name the primary's physical log in --cluster"
)
Greetings: TypeAlias = Mapping[int, AcceptorGreeting]  # by the safekeeper's place in --safekeepers


class Misconfigured(WalkeeperError):
    """A new request will not help: an operator must change an option."""


@dataclass(frozen=True, slots=True)
class Whole:
    """[begin_lsn, end_lsn) is a whole segment, from one of these safekeepers."""

    begin_lsn: Lsn
    end_lsn: Lsn
    sources: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """The committed part of a segment of `segment_bytes`."""

    begin_lsn: Lsn
    end_lsn: Lsn
    segment_bytes: int
    sources: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Absent:
    """The log ends before this file, as a quorum proves."""

    text: str


@dataclass(frozen=True, slots=True)
class Gone:
    """The WAL existed, and every member has removed it."""

    text: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """The answer is not known yet: ask again.

    `reach_lsn` is the bound that this round found, or None without a quorum.
    """

    text: str
    reach_lsn: Lsn | None = None


Verdict: TypeAlias = Whole | Part | Absent | Gone | Unknown


def configuration_of(greetings: Greetings) -> Configuration | None:
    """Return the newest configuration among the greetings, or None if there is none.

    Raise Misconfigured if the safekeepers hold different logs, or a logical log. A logical log has
    the primary's system_id, and its segments have names like WAL. Without this check a server would
    take them for WAL, and the first of them for the end of its WAL.
    """
    known = [g.configuration for g in greetings.values() if g.configuration is not None]
    if len({configuration.log_uuid for configuration in known}) > 1:
        raise Misconfigured("these safekeepers hold different logs under this cluster's name")
    if any(configuration.kind is LogKind.LOGICAL for configuration in known):
        raise Misconfigured(LOGICAL_LOG)
    return max(known, key=lambda configuration: configuration.generation, default=None)


def members_of(greetings: Greetings, configuration: Configuration) -> dict[str, AcceptorGreeting]:
    """Return the greetings of members by name. A member with a new disk has another name."""
    named = {member_name(g.acceptor_id, g.incarnation): g for g in greetings.values()}
    return {name: g for name, g in named.items() if name in configuration.everyone}


def lacking(members: Mapping[str, object], configuration: Configuration) -> str | None:
    """Return the reason why these members are no vote quorum, or None if they are one."""
    if configuration.elects(members.keys()):
        return None
    missing = ", ".join(m.partition("#")[0] for m in configuration.everyone if m not in members)
    needed = " and ".join(map(shown_votes, configuration.sets))
    return (
        f"no quorum: {len(members)} of {len(configuration.everyone)} members answered, and an "
        f"election needs {needed}; missing: safekeeper {missing}"
    )


def log_order(greeting: AcceptorGreeting) -> tuple[Ballot, Lsn]:
    """Return the key by which R4 orders logs: the last ballot of the history, then flush_lsn."""
    return greeting.history[-1].ballot, greeting.flush_lsn


def timeline_range(history: History, timeline: int) -> tuple[Lsn, Lsn] | None:
    """Return the range of a timeline in this log, or None if the log was never on it.

    The range ends where the next timeline starts, or at LSN_MAX.
    """
    starts = [entry.start_lsn for entry in history if entry.timeline == timeline]
    later = [entry.start_lsn for entry in history if entry.timeline > timeline]
    return (starts[0], later[0] if later else LSN_MAX) if starts else None


def judge_segment(
    name: str,
    greetings: Greetings,
    *,
    reach_lsn: Lsn | None = None,
    min_lsn: Lsn = ZERO_LSN,
) -> Verdict:
    """Return the verdict on a segment; raise Misconfigured if an option is wrong.

    `reach_lsn` is the least bound that an earlier round of the same request found. That bound
    suffices, because later commits need not be in the answer.
    """
    configuration = configuration_of(greetings)
    if configuration is None:
        return Unknown("no safekeeper answered with a log")
    try:
        timeline, begin_lsn = parse_segment_name(name, configuration.segment_bytes)
    except ValueError as error:
        raise Misconfigured(f"{error}: this is another cluster") from error
    end_lsn = begin_lsn + configuration.segment_bytes
    settled = {place: log for place, log in greetings.items() if log.record_lsn >= end_lsn}
    if whole := _holders(settled, timeline, begin_lsn, end_lsn):
        return Whole(begin_lsn, end_lsn, whole)
    members = members_of(greetings, configuration)
    if text := lacking(members, configuration):
        return Unknown(text)
    donor = max(members.values(), key=log_order)
    reach_lsn = donor.record_lsn if reach_lsn is None else min(reach_lsn, donor.record_lsn)
    commit_lsn = max(member.commit_lsn for member in members.values())
    if commit_lsn < max(reach_lsn, min_lsn):
        text = _uncommitted(commit_lsn, reach_lsn, min_lsn)
        if reach_lsn > commit_lsn:
            text += f"; {_settling(members, configuration)}"
        return Unknown(text, reach_lsn)
    created, found = donor.history[0], timeline_range(donor.history, timeline)
    if (timeline, begin_lsn) < (created.timeline, created.start_lsn):
        return Gone(f"the log starts at {created.start_lsn} on timeline {created.timeline}")
    if found is None:
        return Absent(f"the log has no timeline {timeline}; it ends at {commit_lsn}")
    start_lsn, fork_lsn = found
    if end_lsn <= start_lsn or start_lsn == fork_lsn:
        return Absent(f"timeline {timeline} starts at {start_lsn} and ends at {fork_lsn}")
    end_lsn = min(end_lsn, fork_lsn, commit_lsn)
    if end_lsn <= begin_lsn:
        return Absent(f"timeline {timeline} ends at {min(fork_lsn, commit_lsn)}")
    if parts := _holders(greetings, timeline, begin_lsn, end_lsn):
        return Part(begin_lsn, end_lsn, configuration.segment_bytes, parts)
    oldest = min(member.oldest_lsn for member in members.values())
    if len(members) < len(configuration.everyone):
        return Unknown(f"no member that answered keeps {name}; their oldest WAL is at {oldest}")
    return Gone(f"the oldest WAL that is kept is at {oldest}")


def _holders(greetings: Greetings, timeline: int, begin_lsn: Lsn, end_lsn: Lsn) -> tuple[int, ...]:
    return tuple(
        place for place, log in greetings.items() if holds(log, timeline, begin_lsn, end_lsn)
    )


def holds(log: AcceptorGreeting, timeline: int, begin_lsn: Lsn, end_lsn: Lsn) -> bool:
    """Return True if the log has all of [begin_lsn, end_lsn), committed and on this timeline."""
    covered = timeline_range(log.history, timeline)
    is_committed = log.oldest_lsn <= begin_lsn and end_lsn <= log.commit_lsn
    return covered is not None and is_committed and covered[0] < end_lsn <= covered[1]


def _uncommitted(commit_lsn: Lsn, reach_lsn: Lsn, min_lsn: Lsn) -> str:
    if reach_lsn <= commit_lsn:
        return f"the log is committed up to {commit_lsn}, below --min-lsn {min_lsn}"
    return (
        f"WAL up to {reach_lsn} may have been acknowledged, but is known to be committed only up "
        f"to {commit_lsn}"
    )


def _settling(members: Mapping[str, object], configuration: Configuration) -> str:
    """Return the remedy in words: `settle`, for which an ack quorum has to be up."""
    if configuration.commits(members.keys()):
        return "without a proposer, run `walkeeper settle`"
    missing = ", ".join(m.partition("#")[0] for m in configuration.everyone if m not in members)
    return (
        f"`walkeeper settle` would make it known, for which an ack quorum "
        f"({' and '.join(map(shown_acks, configuration.sets))}) has to be up: without a "
        f"proposer, start safekeeper {missing} with its disk, or enough of these, and settle"
    )
