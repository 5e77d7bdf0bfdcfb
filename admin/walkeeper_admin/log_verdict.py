"""The verdict on a log, from the document of `status --json`. Pure.

    judge(document) -> Verdict     one body for the text, JSON, the exit code and every other view
    ignoring(verdict, codes)       the same without the warnings that the operator ignores

Reasons come in the order of their weight. The exit codes are those of Nagios. No reason is found by
reading prose: each member's `trouble` is one of TROUBLES. docs/runbooks.md has a section for each
code, named in its remedy.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from enum import IntEnum
from typing import Any

from walkeeper_admin.archive_status import archive_troubles
from walkeeper_admin.closed_logs import (
    RELEASE,
    again,
    commits_without_a_proposer,
    unaware,
    waiting_commits,
)
from walkeeper_admin.member_sets import lacking_in
from walkeeper_admin.member_troubles import DAMAGED_TOO, HANGS, LOST_LOG, TROUBLES
from walkeeper_admin.unanswered import unanswered
from walkeeper_common.lsn import Lsn
from walkeeper_common.operator_text.counts import counted
from walkeeper_common.quorum import member_id


class State(IntEnum):
    """The values are exit codes."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that is wrong. `since` is ISO 8601, or None if no daemon knows it.

    `member` is the safekeeper's id, or None. `whose` names the safekeeper for people."""

    code: str
    state: State
    text: str
    remedy: str
    since: str | None = None
    member: int | None = None
    whose: str = ""

    def shown(self) -> dict[str, object]:
        """Return the reason as JSON has it."""
        facts = {**asdict(self), "state": self.state.name}
        del facts["whose"]
        return facts


@dataclass(frozen=True, slots=True)
class Verdict:
    """The state, one line for people, and the reasons, the heaviest first."""

    state: State
    text: str
    reasons: tuple[Reason, ...] = ()

    def shown(self) -> dict[str, object]:
        """Return the verdict as JSON has it."""
        return {"state": self.state.name, "exit_code": int(self.state), "text": self.text}


WAITED_FOR = ("sync", "quorum")
# The codes of warnings; with those of CRITICAL reasons, the sections of docs/runbooks.md.
WARNINGS = (
    *TROUBLES,
    "replacing",
    "closing",
    "not_heard",
    "not_asked",
    "lagging",
    "unprotected",
    "lowered",
    "primary_not_asked",
    "archive",
    "differing",
)
LOST_REMEDY = (
    "no election and no `walkeeper replace` brings it back. If the primary is alive: `walkeeper "
    "detach`, stop the proposer, `walkeeper detach --drop-slot`, `walkeeper create --cluster NEW`, "
    "start a proposer with --cluster NEW, `walkeeper attach`; docs/runbooks.md has the steps"
)
CHANGE_REMEDY = (
    "wait until it has joined; commits go on. If it does not come, start it, or take the change "
    "back: `walkeeper members cancel`, for a replacement `walkeeper replace --cancel`"
)
SEALED_REMEDY = (
    "`walkeeper settle --seal` has sealed the log: promote the standby and start `walkeeper "
    "proposer` for it; if there is none, start `walkeeper proposer --resume` for the old primary"
)


def judge(document: dict[str, Any]) -> Verdict:
    """Return the verdict on this document; its own `verdict` and `reasons` are not read."""
    cluster, lines = document["cluster"], document["safekeepers"]
    members = _members(lines)
    blocking = _blocking(cluster, lines, members)
    if blocking is not None:
        blocking = replace(blocking, since=_hang_since(cluster))
        return Verdict(blocking.state, blocking.text, (blocking, *_gated(cluster), *members))
    reasons = [*_unanswered(cluster), *_hanging(cluster, lines), *_gated(cluster)]
    if (text := _under_way(cluster, lines)) is not None:
        reasons.append(_warning("replacing", text, CHANGE_REMEDY))
    reasons += members
    if away := unaware(cluster, lines, _ids(cluster)):
        text = f"safekeeper {', '.join(map(str, away))} does not know that the log was closed"
        reasons.append(_warning("closing", text, again(cluster)))
    if deaf := _deaf(cluster):
        text = f"the proposer is not heard by {', '.join(deaf)}"
        reasons.append(_warning("not_heard", text, "look at its log, and at the network between"))
    lost = _lost(lines, deaf) if _under_way(cluster, lines) is None else []
    reasons += lost
    reasons += _missing(cluster, lines)
    if not members and not lost and not deaf and _under_way(cluster, lines) is None:
        reasons += _lagging(cluster, lines)
    reasons += _unprotected(cluster)
    found = [_warning("archive", each, "see docs/archive.md") for each in archive_troubles(lines)]
    return _verdict([*reasons, *found, *_differing(lines)], cluster.get("closed_lsn"))


def ignoring(found: Verdict, codes: Collection[str]) -> Verdict:
    """Return the verdict without the warnings of these codes. Only a WARNING changes."""
    known = [reason for reason in found.reasons if reason.code in codes]
    if found.state is not State.WARNING or not known:
        return found
    if kept := [reason for reason in found.reasons if reason not in known]:
        return _verdict(kept, None)
    return Verdict(State.OK, f"ok, but for what is ignored: {'; '.join(_clauses(known))}")


def _verdict(reasons: Sequence[Reason], closed_lsn: str | None) -> Verdict:
    if not reasons and closed_lsn is not None:
        return Verdict(State.OK, f"ok: closed at {closed_lsn}, and every safekeeper has all of it")
    if not reasons:
        return Verdict(State.OK, "ok: every safekeeper has what is committed")
    ordered = tuple(sorted(reasons, key=lambda reason: -reason.state))
    first = ordered[0]
    if first.state is State.CRITICAL:
        return Verdict(first.state, first.text, ordered)
    return Verdict(first.state, f"degraded: {'; '.join(_clauses(ordered))}", ordered)


def _clauses(reasons: Sequence[Reason]) -> list[str]:
    """Return the parts of the line. Members in trouble come before the archive."""
    # A replacement is mostly that of the member in trouble.
    replacing = any(reason.code == "replacing" for reason in reasons)
    members = [r.text for r in reasons if r.code in TROUBLES and not replacing]
    found = []
    for reason in reasons:
        if reason.code in ("replacing", "not_heard"):
            found.append(f"{reason.text}, commits go on")
        elif reason.code not in TROUBLES and not (members and reason.code == "archive"):
            found.append(reason.text)
    if members:
        found.insert(0, f"{', '.join(members)}; commits go on")
    return found


def _warning(code: str, text: str, remedy: str) -> Reason:
    return Reason(code, State.WARNING, text, remedy)


def _members(lines: Sequence[dict[str, Any]]) -> list[Reason]:
    found = []
    damaged = sum(trouble_of(line) == "damaged" for line in lines)
    for line in lines:
        if (code := trouble_of(line)) is None:
            continue
        words, remedy = HANGS if line.get("hangs") else TROUBLES[code]
        text = f"{name_of(line)} ({words})"
        if code in ("failed", "refusing", "refused", "wrong_log"):
            text = f"{name_of(line)} ({words}: {line['error']})"
        if code == "damaged":
            text = f"{name_of(line)} ({words}: {line['damage']})"
            remedy = DAMAGED_TOO if damaged > 1 else remedy
        whose, since = name_of(line), line.get("away_since")
        found.append(Reason(code, State.WARNING, text, remedy, since, number_of(line), whose))
    return found


def _differing(lines: Sequence[dict[str, Any]]) -> list[Reason]:
    """Return a reason for each member whose scrub found copies that differ, and no majority."""
    return [
        _warning(
            "differing",
            f"segments of {name_of(line)} that differ from another copy: {line['differences']}",
            "its log names the copies; docs/runbooks.md#differing",
        )
        for line in lines
        if line.get("differences")
    ]


def trouble_of(line: dict[str, Any]) -> str | None:
    """Return the code of a member's trouble, or None.

    A safekeeper of an older version reports an error without a code."""
    if not line["reachable"]:
        return "unreachable"
    return line.get("trouble") or ("refused" if line["error"] else None)


def _blocking(
    cluster: dict[str, Any], lines: Sequence[dict[str, Any]], members: Sequence[Reason]
) -> Reason | None:
    """Return the reason for which no commit can return, as far as safekeepers know; or None."""
    names = [reason.text for reason in members]
    if not cluster["quorum"]:
        return _no_quorum(cluster, lines, names)
    if cluster["proposer"] is None and cluster.get("is_closing"):
        text = "`walkeeper logs close` was interrupted: no quorum has the close"
        return Reason("closing", State.CRITICAL, text, again(cluster))
    if cluster["proposer"] is None and cluster.get("closed_lsn"):
        return None  # a closed log needs none
    if cluster["proposer"] is None:
        change = _under_way(cluster, lines)
        text = "no proposer leads: commits of an attached primary hang"
        text += f"; {change}" if change else ""
        remedy = SEALED_REMEDY if cluster.get("sealed") else "start `walkeeper proposer`"
        return Reason("no_proposer", State.CRITICAL, text, remedy)
    if not cluster["heard_by_quorum"]:
        unheard = [f"{name} (does not hear the proposer)" for name in _deaf(cluster)]
        return _no_quorum(cluster, lines, [*names, *unheard])
    return None


def _no_quorum(
    cluster: dict[str, Any], lines: Sequence[dict[str, Any]], blocking: Sequence[str]
) -> Reason:
    """Return UNKNOWN if the members that could make the quorum were not asked."""
    silent = [line for line in lines if not line["reachable"]]
    listed = ", ".join(blocking)
    if len(silent) == len(lines):
        text = f"no quorum: none of {listed} answers"
        return Reason("no_quorum", State.CRITICAL, text, TROUBLES["unreachable"][1])
    if not cluster["members"]:
        text = f"no safekeeper that was asked has this log: {listed}"
        remedy = f"check --cluster and --safekeepers. If all disks were lost, {LOST_REMEDY}"
        return Reason("no_log", State.CRITICAL, text, remedy)
    heard = {line["id"] for line in lines if line["reachable"]}
    not_asked = len(_ids(cluster) - heard) - len(silent)
    if not_asked > 0:
        were = f"of its {len(cluster['members'])} safekeepers"
        others = counted(not_asked, f"{were} was not asked", f"{were} were not asked")
        text = f"no quorum among those asked; {others}: name all with --safekeepers"
        return Reason("not_asked", State.UNKNOWN, text, "name all members with --safekeepers")
    lost = sorted(_ids(cluster) & {x["id"] for x in lines if x.get("trouble") in LOST_LOG})
    if len(lost) > len(cluster["members"]) - (cluster.get("ack_quorum") or len(lines)):
        text = (
            f"no quorum: commits hang; safekeepers {', '.join(map(str, lost))} have lost the log, "
            "and with them its quorum"
        )
        return Reason("majority_lost", State.CRITICAL, text, LOST_REMEDY)
    change, under_way = cluster["replacing"], _under_way(cluster, lines)
    if (change or cluster.get("changing") or {}).get("is_learning"):
        change = under_way = None  # learners are in no set, so they block nothing (M2)
    if not change:
        if under_way:
            back = "`walkeeper members cancel`"
            text = f"no quorum: commits hang; blocked by {listed or 'a newcomer'}; {under_way}"
            remedy = f"bring back one of these, or take the change back: {back}"
            return Reason("no_quorum", State.CRITICAL, f"{text}; {back} takes that back", remedy)
        text = f"no quorum: commits hang; blocked by {listed}"
        if zones := lacking_in(cluster, heard):
            text += f"; {zones}"
        remedy = (
            "bring back one of these safekeepers; if that takes too long, `walkeeper detach` "
            "releases commits, without the quorum's guarantee"
        )
        return Reason("no_quorum", State.CRITICAL, text, remedy)
    joining = f"safekeeper {change['joining']}"
    if change["joining"] not in heard and not any(joining in name for name in blocking):
        listed = ", ".join([*blocking, joining])
    text = (
        f"no quorum: commits hang; blocked by {listed}; {shown_replacing(change, lines)}; "
        "`walkeeper replace --cancel` takes that back"
    )
    remedy = "bring back one of these, or take the replacement back: `walkeeper replace --cancel`"
    return Reason("no_quorum", State.CRITICAL, text, remedy)


def _hang_since(cluster: dict[str, Any]) -> str | None:
    """Return since when a commit waits, by the proposer's last report or by --dsn, or None."""
    primary = cluster.get("primary")
    since: str | None = primary["waiting_since"] if primary is not None else None
    return since


def _hanging(cluster: dict[str, Any], lines: Sequence[dict[str, Any]]) -> list[Reason]:
    """Return the reasons for which commits hang or fail although the safekeepers are well."""
    primary = cluster.get("primary")
    if primary is None:
        return []
    if cluster.get("closed_lsn"):
        text = commits_without_a_proposer(cluster)
        since = primary["waiting_since"]
        return [Reason("commits_wait", State.CRITICAL, text, RELEASE, since)] if text else []
    if not primary["connected"]:
        why = f": {primary['error']}" if primary["error"] else ""
        text = f"the proposer has no connection to the primary{why}"
        remedy = "start the primary, or promote a standby after `walkeeper settle --seal`"
        return [Reason("primary_down", State.CRITICAL, text, remedy, primary["since"])]
    if not primary["streaming"]:
        text = "the primary does not stream to the proposer: commits hang if it is attached"
        remedy = "the proposer's log says why"
        return [Reason("not_streaming", State.CRITICAL, text, remedy, primary["since"])]
    if primary["waiting"]:
        text = f"{waiting_commits(primary)} since {primary['waiting_since']}"
        look = "see which standbys synchronous_standby_names wants, and which member is slow"
        if slow := _unsynced(lines):
            text += f"; {', '.join(slow)} {'has' if len(slow) == 1 else 'have'} WAL to sync to disk"
            look = "if these disks stay slow, repair or replace them"
        remedy = f"{look}; `walkeeper detach` releases commits, without the quorum's guarantee"
        return [Reason("commits_wait", State.CRITICAL, text, remedy, primary["waiting_since"])]
    return []


def _unanswered(cluster: dict[str, Any]) -> list[Reason]:
    """Return a reason if `--dsn` got no answer."""
    if (found := unanswered(cluster)) is None:
        return []
    if found.is_shared:
        return [Reason("primary_down", State.CRITICAL, found.text, found.remedy)]
    state = State.CRITICAL if found.is_critical else State.WARNING
    return [Reason("primary_not_asked", state, found.text, found.remedy)]


def _gated(cluster: dict[str, Any]) -> list[Reason]:
    """Return a reason while `walkeeper gate` keeps clients out, as `--dsn` answers."""
    if not is_gated(cluster):
        return []
    text = (
        "`walkeeper gate` keeps the primary closed to clients: no quorum has all WAL that it shows"
    )
    remedy = (
        "bring the quorum and the proposer back; if no gate runs any more: `walkeeper gate --wait` "
        "behind --exec, else the same `walkeeper gate -- COMMAND` again"
    )
    return [Reason("gated", State.CRITICAL, text, remedy)]


def is_gated(cluster: dict[str, Any]) -> bool:
    """Return True if the primary is closed to clients, as its own answer says."""
    return cluster.get("gate") == "closed"


def _unsynced(lines: Sequence[dict[str, Any]]) -> list[str]:
    """Return the members that have received WAL and not synced it; an old version says nothing."""
    return [
        name_of(line)
        for line in lines
        if line["reachable"] and line.get("write_lsn") not in (None, line["flush_lsn"])
    ]


def _unprotected(cluster: dict[str, Any]) -> list[Reason]:
    """Return the reasons for which commits return without the quorum."""
    primary = cluster.get("primary")
    is_another_log = cluster.get("kind") == "logical" or cluster.get("closed_lsn")
    if primary is None or not primary["connected"] or is_another_log:
        return []
    found = []
    state = primary["sync_state"]
    if state is not None and state not in WAITED_FOR:
        text = f"no commit waits for the quorum: the proposer is {state} at the primary"
        remedy = "run `walkeeper attach`"
        found.append(Reason("unprotected", State.WARNING, text, remedy, primary["since"]))
    if primary["lowered"]:
        text = f"some commits do not wait for the quorum: {', '.join(primary['lowered'])}"
        remedy = "reset synchronous_commit there, unless these commits may be lost"
        found.append(_warning("lowered", text, remedy))
    return found


def _missing(cluster: dict[str, Any], lines: Sequence[dict[str, Any]]) -> list[Reason]:
    missing = sorted(_ids(cluster) - {line["id"] for line in lines if line["reachable"]})
    silent = sum(not line["reachable"] for line in lines)
    if len(missing) <= silent:
        return []
    text = f"safekeeper {missing[0]} was not asked or is down"
    return [_warning("not_asked", text, "name all members with --safekeepers")]


def _lagging(cluster: dict[str, Any], lines: Sequence[dict[str, Any]]) -> list[Reason]:
    commit_lsn, timeline = Lsn.parse(cluster["commit_lsn"]), cluster["timeline"]
    segment = cluster["segment_bytes"]
    blocked = [
        name_of(line)
        for line in lines
        if line["timeline"] != timeline or commit_lsn - Lsn.parse(line["flush_lsn"]) > segment
    ]
    if not blocked:
        return []
    text = f"{', '.join(blocked)} behind the quorum"
    return [_warning("lagging", text, "wait; if the lag grows, that disk or network is too slow")]


def _lost(lines: Sequence[dict[str, Any]], deaf: Collection[str]) -> list[Reason]:
    """Return the members that answer here, and that the leading proposer reports as away.

    A disk that takes seconds for an fdatasync looks like that: only commits wait for it."""
    return [
        Reason(
            "not_heard",
            State.WARNING,
            f"{name_of(line)} answers, and is not attached to the proposer",
            "its disk or the network between is too slow: run `walkeeper check`, and see its log",
            line["away_since"],
            number_of(line),
            name_of(line),
        )
        for line in lines
        if line.get("away_since") and trouble_of(line) is None and name_of(line) not in deaf
    ]


def _deaf(cluster: dict[str, Any]) -> list[str]:
    if cluster["proposer"] is None:
        return []  # a closed log has none
    return [f"safekeeper {number}" for number in cluster["not_hearing"]]


def _under_way(cluster: dict[str, Any], lines: Sequence[dict[str, Any]]) -> str | None:
    """Return the change of members that is under way, as a clause, or None."""
    if replacing := cluster["replacing"]:
        return shown_replacing(replacing, lines)
    if changing := cluster.get("changing"):
        return shown_changing(changing)
    return None


def shown_changing(change: dict[str, Any]) -> str:
    """Return the progress of any other change of members, as a clause."""
    to_go, members = change["bytes_to_go"], ", ".join(map(str, change["members"]))
    text = f"the members change to {members} (ack quorum {change['ack_quorum']})"
    if not change["joining"]:
        return text
    joining = ", ".join(map(str, change["joining"]))
    left = f"{to_go:,} bytes to go" if to_go is not None else f"{joining} have not all joined yet"
    return f"{text}, {left}"


def shown_replacing(change: dict[str, Any], lines: Sequence[dict[str, Any]]) -> str:
    """Return the progress of a replacement, as a clause."""
    to_go, joining = change["bytes_to_go"], change["joining"]
    if to_go is not None:
        left = f"{to_go:,} bytes to go"
    elif any(line["id"] == joining and line["reachable"] for line in lines):
        left = "which has not joined yet"
    else:
        left = "which does not answer (--safekeepers has to name it)"
    return f"safekeeper {change['leaving']} is being replaced by {change['joining']}, {left}"


def name_of(line: dict[str, Any]) -> str:
    """Return the member's name for people: its id, and its address if it did not answer."""
    number = number_of(line)
    if number is None or line["id"] is not None:
        return f"{line['address']}" if number is None else f"safekeeper {number}"
    return f"safekeeper {number} at {line['address']}"


def number_of(line: dict[str, Any]) -> int | None:
    """Return the member's id, of a silent one as others have it (silent_members.py); or None."""
    number: int | None = line["id"]
    return line.get("expected_id") if number is None else number


def _ids(cluster: dict[str, Any]) -> set[int]:
    return {member_id(member) for member in cluster["members"]}
