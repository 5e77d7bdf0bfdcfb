"""The lines of an incident: members that leave, commits that hang or have no guarantee. Pure.

    observe(view, now_s) -> lines     called a few times a second

Commits hang if fewer members are attached than a commit needs for HANG_S, or if WAL waits for
STILL_S without a move of commit_lsn. They lose their guarantee when the primary stops to wait for
this proposer. The lines name members by id and address, and a runbook.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from walkeeper_common.lsn import Lsn
from walkeeper_common.operator_text.counts import counted
from walkeeper_common.operator_text.severity import Severity
from walkeeper_proposer.away_members import MemberIds, MemberView

HANG_S, STILL_S = 1.0, 5.0


@dataclass(frozen=True, slots=True)
class LeaderView:
    """A leader that streams from its primary, or that has done so."""

    members: Sequence[MemberView]
    ack_quorum: int
    commit_lsn: Lsn
    received_lsn: Lsn
    is_waited_for: bool = True  # False if the primary's commits are known to wait for nobody
    lowered: Sequence[str] = ()  # settings with which commits wait for nobody
    lacks: str = ""  # the zones that a commit lacks, as a clause


@dataclass(frozen=True, slots=True)
class Line:
    """One line for the log."""

    severity: Severity
    text: str


class Incidents:
    """The state after the last lines. A new term of this process goes on with it."""

    def __init__(self) -> None:
        self._ids = MemberIds()
        self._attached: dict[str, bool] = {}
        self._short_since: float | None = None  # fewer are attached than a commit needs
        self._still: tuple[Lsn, float] | None = None  # commit_lsn, while WAL waits, and since when
        self._hang_since: float | None = None  # set between the two lines
        self._was_waited_for: bool | None = None
        self._lowered: Sequence[str] = ()

    def observe(self, view: LeaderView | None, now_s: float) -> list[Line]:
        """Return the lines for what has changed; None means that this proposer does not lead."""
        if view is None:
            self._short_since = self._still = None
            return []
        self._ids.learn(view.members)
        lines = [line for member in view.members for line in self._member(member, view)]
        return lines + self._guarantee(view) + self._commits(view, now_s)

    def has_waited(self, now_s: float) -> bool:
        """Return True if WAL has waited for a quorum for HANG_S without a move of commit_lsn."""
        return self._still is not None and now_s - self._still[1] >= HANG_S

    def _member(self, member: MemberView, view: LeaderView) -> list[Line]:
        before = self._attached.get(member.address)
        self._attached[member.address] = member.attached
        if before in (None, member.attached):
            return []
        attached = sum(each.attached for each in view.members)
        count = f"{attached} of {len(view.members)} are, and a commit needs {view.ack_quorum}"
        if member.attached:
            return [Line(Severity.LOG, f"{self._name(member)} is attached again: {count}")]
        return [Line(Severity.WARNING, f"{self._name(member)} is not attached any more: {count}")]

    def _guarantee(self, view: LeaderView) -> list[Line]:
        """Return the lines for commits that return without the quorum from now on, or wait again.

        A proposer that was never waited for is not attached yet, and that is no incident."""
        lines = []
        before, self._was_waited_for = self._was_waited_for, view.is_waited_for
        if before and not view.is_waited_for:
            text = (
                "commits return without the quorum: the primary does not wait for this proposer "
                "any more; run `walkeeper attach`; see docs/runbooks.md#unprotected"
            )
            lines.append(Line(Severity.WARNING, text))
        elif before is False and view.is_waited_for:
            lines.append(Line(Severity.LOG, "commits wait for the quorum"))
        if view.lowered == self._lowered:
            return lines
        self._lowered = view.lowered
        if not view.lowered:
            return [*lines, Line(Severity.LOG, "no setting lowers synchronous_commit any more")]
        text = (
            f"some commits do not wait for the quorum: {', '.join(view.lowered)}; reset the "
            "setting unless these commits may be lost; see docs/runbooks.md#lowered"
        )
        return [*lines, Line(Severity.WARNING, text)]

    def _commits(self, view: LeaderView, now_s: float) -> list[Line]:
        attached = sum(each.attached for each in view.members)
        is_short = attached < view.ack_quorum or bool(view.lacks)
        if not is_short:
            self._short_since = None
        elif self._short_since is None:
            self._short_since = now_s
        if view.received_lsn <= view.commit_lsn:
            self._still = None
        elif self._still is None or self._still[0] != view.commit_lsn:
            self._still = (view.commit_lsn, now_s)
        if self._hang_since is None:
            return self._begin(view, attached, now_s)
        if is_short or self.has_waited(now_s):
            return []
        waited_s, self._hang_since = now_s - self._hang_since, None
        return [Line(Severity.LOG, f"commits go on after {waited_s:.0f} s")]

    def _begin(self, view: LeaderView, attached: int, now_s: float) -> list[Line]:
        if self._short_since is not None and now_s - self._short_since >= HANG_S:
            self._hang_since = self._short_since
            missing = ", ".join(self._name(each) for each in view.members if not each.attached)
            zones = f"; {view.lacks}" if view.lacks else ""
            needed = f"of the {view.ack_quorum} safekeepers that a commit needs"
            here = counted(attached, f"{needed} is", f"{needed} are")
            text = (
                f"{here} attached (missing: {missing}){zones}; bring one back, or release commits "
                "with `walkeeper detach`; see docs/runbooks.md#no_quorum"
            )
            return [_hanging(view, text)]
        if self._still is not None and now_s - self._still[1] >= STILL_S:
            self._hang_since = self._still[1]
            here = counted(attached, "safekeeper is", "safekeepers are")
            text = (
                f"{here} attached, and no quorum has acknowledged WAL after "
                f"{view.commit_lsn} for {STILL_S:.0f} s; look at their disks and at the network; "
                "see docs/runbooks.md#commits_wait"
            )
            return [_hanging(view, text)]
        return []

    def _name(self, member: MemberView) -> str:
        known = self._ids.of(member.address)
        return f"safekeeper {known} at {member.address}" if known else f"{member.address}"


def _hanging(view: LeaderView, text: str) -> Line:
    if view.is_waited_for:
        return Line(Severity.ERROR, f"commits hang: {text}")
    return Line(Severity.WARNING, f"WAL gets no quorum, and no commit waits for it: {text}")
