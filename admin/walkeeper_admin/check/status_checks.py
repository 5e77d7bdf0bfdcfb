"""The checks that the document of `status --json` answers: members, disks, clocks, slots. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from walkeeper_admin.check.finding import Finding, Grade, ok
from walkeeper_admin.log_verdict import Reason, judge, name_of
from walkeeper_admin.member_sets import set_of
from walkeeper_common.operator_text.counts import counted
from walkeeper_common.operator_text.zones import shown_acks

FREE_SHARE_MIN = 0.1  # a day without a member fills a disk that has less
FSYNC_S_MAX = 0.05  # on average: 20 commits a second for one client
SKEW_S_MAX = 5.0  # consensus needs no clock; logs, certificates and recovery to a time do
SLOT_BYTES_MAX = 1 << 30
LAG_BYTES_MAX = 1 << 30
GRADES = {"WARNING": Grade.WARNING, "CRITICAL": Grade.FAILED, "UNKNOWN": Grade.FAILED}
CHECKS = {"gated": "gate"}  # by the code of a reason that is not of the members
Lines = Sequence[dict[str, Any]]


def from_status(document: dict[str, Any]) -> list[Finding]:
    """Return the findings of one document."""
    lines = [line for line in document["safekeepers"] if line["reachable"]]
    checks: Iterable[Callable[[Lines], list[Finding]]] = (
        _space,
        _fsyncs,
        _clocks,
        _versions,
        _scrub,
        _slots,
        _standbys,
    )
    of_log = (*_members(document), *_zones(document), *_spares(document))
    return [*of_log, *(found for check in checks for found in check(lines))]


def _members(document: dict[str, Any]) -> list[Finding]:
    """Return a finding for each reason of the verdict, but for the archive, which has its own."""
    cluster, reasons = document["cluster"], judge(document).reasons
    found = [
        Finding(
            CHECKS.get(reason.code, "members"), GRADES[reason.state.name], reason.text,
            _why(reason), f"{reason.remedy}; docs/runbooks.md#{reason.code}",
        )
        for reason in reasons
        if reason.code != "archive"
    ]  # fmt: skip
    if found:
        return found
    if closed_lsn := cluster.get("closed_lsn"):
        return [ok("members", f"closed at {closed_lsn}, and each of them has all of it")]
    count, needed = len(cluster["members"]), shown_acks(set_of(cluster))
    return [ok("members", f"{count} of {count} have what is committed; a commit needs {needed}")]


def _zones(document: dict[str, Any]) -> list[Finding]:
    """Return a WARNING for zones whose loss would stop commits now, or OK if there are none.

    Return no finding for a log without zones.
    """
    failures = document["cluster"].get("zone_failures") or {}
    stops = [f"zone {zone}: {reason}" for zone, reason in failures.items() if reason]
    if stops:
        why = "the loss of this zone stops commits"
        remedy = "bring its members back, or add some in other zones: docs/members.md#zones"
        return [Finding("zones", Grade.WARNING, "; ".join(stops), why, remedy)]
    return [ok("zones", f"any one of {', '.join(failures)} may fail")] if failures else []


def _spares(document: dict[str, Any]) -> list[Finding]:
    """Return a finding on the spares and on a repair, if the log has spares."""
    spares, repair = document.get("spares") or [], document["cluster"].get("repair")
    silent = [f"{each['id']}" for each in spares if each["reachable"] is False]
    why = "no repair can use it"
    remedy = f"start it, or `walkeeper spare rm {' '.join(silent)}`; docs/members.md#spares"
    found = []
    if silent:
        text = f"spare {', '.join(silent)} does not answer"
        found.append(Finding("spares", Grade.WARNING, text, why, remedy))
    if repair and repair.startswith("held back"):
        why = "a member is silent, and no spare takes its place yet"
        remedy = "docs/runbooks.md#repair"
        found.append(Finding("repair", Grade.WARNING, repair, why, remedy))
    if found or not spares:
        return found
    return [ok("spares", f"{len(spares)} answer; {repair or 'no repair is needed'}")]


def _why(reason: Reason) -> str:
    if reason.code == "gated":
        return "clients are refused"
    if reason.state.name == "WARNING":
        return "one more failure can stop commits, or commits have no guarantee"
    return "commits hang, or cannot be judged"


def _space(lines: Lines) -> list[Finding]:
    found, rooms = [], []
    for line in lines:
        free, size = line.get("free_bytes"), line.get("size_bytes")
        if not size or free is None:
            continue
        room = f"{name_of(line)} has {_size(free)} of {_size(size)} free"
        rooms.append(room)
        if free / size < FREE_SHARE_MIN:
            text = "a member that is away, or the archive, makes the others keep WAL until it fills"
            remedy = "free space or enlarge the disk: docs/operations.md#how-large-a-disk"
            found.append(Finding("disk space", Grade.WARNING, room, text, remedy))
    if found or not rooms:
        return found or [_not_known("disk space", lines)]
    return [ok("disk space", "; ".join(rooms))]


def _fsyncs(lines: Lines) -> list[Finding]:
    known = [line for line in lines if line.get("fsync_s") is not None]
    if not known:
        return [_not_known("fdatasync", lines)]
    shown = "; ".join(f"{name_of(line)} takes {line['fsync_s'] * 1000:.2f} ms" for line in known)
    slow = [line for line in known if line["fsync_s"] > FSYNC_S_MAX]
    if not slow:
        return [ok("fdatasync", shown)]
    why = "a commit takes at least the time of the slower disk of the fastest quorum"
    return [Finding("fdatasync", Grade.WARNING, shown, why, "docs/runbooks.md#slow_disk")]


def _clocks(lines: Lines) -> list[Finding]:
    known = [line for line in lines if line.get("clock_skew_s") is not None]
    if not known:
        return [_not_known("clocks", lines)]
    wrong = [line for line in known if abs(line["clock_skew_s"]) > SKEW_S_MAX]
    if not wrong:
        return [ok("clocks", f"{len(known)} clocks agree with this host's within {SKEW_S_MAX:g} s")]
    text = "; ".join(f"{name_of(line)} is {line['clock_skew_s']:+.0f} s off" for line in wrong)
    why = "no commit depends on clocks; logs, certificates and recovery to a time do"
    return [Finding("clocks", Grade.WARNING, text, why, "let NTP or chrony set these clocks")]


def _versions(lines: Lines) -> list[Finding]:
    found = {line["version"] for line in lines if line.get("version")}
    if len(found) <= 1:
        return [ok("versions", f"all safekeepers run {next(iter(found), 'an older version')}")]
    text = "; ".join(f"{name_of(line)} runs {line['version']}" for line in lines)
    why = "a mixture is for the time of an upgrade"
    remedy = "finish the upgrade: safekeepers one after the other, the proposer last"
    return [Finding("versions", Grade.WARNING, text, why, remedy)]


def _scrub(lines: Lines) -> list[Finding]:
    """Judge the disks by what a scrub has mended. `_members` reports damage that is not mended."""
    mended = [
        f"damaged segments that {name_of(line)} has rewritten since its start: {line['repairs']}"
        for line in lines
        if line.get("repairs")
    ]
    if mended:
        why = "the disk has lost bytes, and may lose more than other copies have"
        remedy = "look at the disk and the kernel's log: docs/runbooks.md#damaged"
        return [Finding("scrub", Grade.WARNING, "; ".join(mended), why, remedy)]
    passes = min((line.get("scrubs") or 0 for line in lines), default=0)
    seen = f"in {passes} or more passes of each" if passes else "so far; no pass of all has ended"
    return [ok("scrub", f"no damage {seen}")]


def _slots(lines: Lines) -> list[Finding]:
    """Judge the slots. Members share them, so a client at one member uses the copies of all."""
    users: dict[str, list[str]] = {}
    for line in lines:
        for slot in line["slots"]:
            using = [name_of(line)] if slot["active_pid"] is not None else []
            users[slot["slot_name"]] = [*users.get(slot["slot_name"], []), *using]
    twice = [f"slot {name} has clients at {' and '.join(at)}" for name, at in users.items()
             if len(at) > 1]  # fmt: skip
    if twice:
        why = "WAL goes when one of them has it, and the other one may still need it"
        remedy = "give each client a slot of its own"
        return [Finding("slots", Grade.WARNING, "; ".join(twice), why, remedy)]
    idle = [
        f"slot {name} has no client, and the disk of {name_of(line)} keeps "
        f"{_size(line['kept_bytes'])}"
        for line in lines
        for name, at in users.items()
        if not at
        and (line["kept_bytes"] or 0) > SLOT_BYTES_MAX
        and line["kept_for"] == f"slot {name}"
    ]
    if idle:
        why = "a slot without a client keeps WAL until the disk is full"
        remedy = "start the client, or drop the slot: walkeeper slots drop"
        return [Finding("slots", Grade.WARNING, "; ".join(idle), why, remedy)]
    return [ok("slots", f"{counted(len(users), 'slot', 'slots')}, none keeps WAL without a client")]


def _standbys(lines: Lines) -> list[Finding]:
    from walkeeper_common.lsn import Lsn

    names, late = [], []
    for line in lines:
        for standby in line["standbys"]:
            name = f"{standby['application_name']} at {name_of(line)}"
            names.append(name)
            lag = Lsn.parse(line["commit_lsn"]) - Lsn.parse(standby["flush_lsn"])
            if lag > LAG_BYTES_MAX:
                late.append(f"{name} lags by {_size(lag)}")
    if late:
        why = "a failover onto it waits until it has replayed all of this"
        remedy = "look at the standby's log; docs/runbooks.md#standby_lags"
        return [Finding("readers", Grade.WARNING, "; ".join(late), why, remedy)]
    return [ok("readers", ", ".join(names) or "no standby streams from a safekeeper")]


def _not_known(check: str, lines: Lines) -> Finding:
    who = "no safekeeper answers" if not lines else "the safekeepers do not tell"
    why, remedy = "a fault would not be seen", "run `walkeeper check` again in ten seconds"
    return Finding(check, Grade.WARNING, who, why, remedy)


def _size(count: int) -> str:
    for unit, power in (("GB", 30), ("MB", 20)):
        if count >= 1 << power:
            return f"{count / (1 << power):,.1f} {unit}"
    return f"{count:,} bytes"
