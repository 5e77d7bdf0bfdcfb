"""`walkeeper status`: gathers the document, and shows it as a table. The verdict is judge's."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Collection, Sequence
from time import time
from typing import Any

from walkeeper_admin.archive_status import archive_line
from walkeeper_admin.closed_logs import closed_facts, waiting_commits
from walkeeper_admin.log_verdict import (
    State,
    Verdict,
    ignoring,
    is_gated,
    judge,
    name_of,
    number_of,
    trouble_of,
)
from walkeeper_admin.member_sets import (
    have_quorum,
    is_learning,
    set_of,
    sets_of,
    shown_spares,
    spare_lines,
    spares_to_ask,
    zone_facts,
    zone_lines,
)
from walkeeper_admin.primarys_answer import asked_primary
from walkeeper_admin.silent_members import name_silent
from walkeeper_common.addresses import Address, shown_address
from walkeeper_common.errors import Refused, Unreachable
from walkeeper_common.lsn import Lsn
from walkeeper_common.operator_text.printable import printable
from walkeeper_common.quorum import member_id
from walkeeper_common.shell.safekeeper_links.safekeeper_client import Hangs, ask
from walkeeper_common.wire.messages import Reject
from walkeeper_common.wire.requests import StatusRequest, StatusResponse

OK, DEGRADED, NO_QUORUM, UNKNOWN = map(int, State)
AGAIN_S, REPORT_AGE_S = 0.2, 2.0  # between two questions, and the age of a report at most
COLUMNS = (
    "version",
    "incarnation",
    "term",
    "last_log_term",
    "write_lsn",
    "flush_lsn",
    "commit_lsn",
    "restart_lsn",
    "archived_lsn",
    "archive",
    "kind",
    "end_lsn",
    "needed_lsn",
    "timeline",
    "closed_lsn",
    "standbys",
    "first_lsn",
    "lacks_bytes",
    "lacks_reason",
    "kept_bytes",
    "kept_for",
    "free_bytes",
    "size_bytes",
    "fsync_s",
    "clock_skew_s",
    "damage",
    "scrubs",
    "repairs",
    "differences",
)


async def gather(
    addresses: Sequence[Address], cluster: str, timeout_s: float, dsn: str | None = None
) -> dict[str, Any]:
    """Return the document of `status --json` (docs/reference/status-json.md).

    With a DSN, this asks the primary itself. Without one, and without an answer, the document has
    the proposer's last report."""
    answers = await asyncio.gather(*(_ask_one(a, cluster, timeout_s) for a in addresses))
    facts = _newest_facts(answers)
    answers = [_of_this_log(answer, facts) for answer in answers]
    others = spares_to_ask(facts, addresses)
    of_spares = await asyncio.gather(*(_ask_one(a, cluster, timeout_s) for a in others))
    lines = [_line(answer, facts) for answer in answers]
    document: dict[str, Any] = {"cluster": _cluster(cluster, answers, facts), "safekeepers": lines}
    name_silent(lines, document["cluster"])
    document["spares"] = shown_spares(facts or {}, [*answers, *of_spares])
    known = document["cluster"]
    known["dsn_error"] = known["gate"] = None
    if dsn is not None:
        try:
            known |= await asked_primary(dsn, known["proposer"], known["primary"])
        except Refused as error:
            known["dsn_error"] = str(error)
    return with_verdict(document)


async def gather_fresh(
    addresses: Sequence[Address], cluster: str, timeout_s: float, dsn: str | None = None
) -> dict[str, Any]:
    """Return the document, with a report of the proposer that is younger than this question.

    While no commit waits for the quorum, the proposer asks the primary each second. So its report
    may be older than an `attach` that has just ended: ask again for REPORT_AGE_S."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + REPORT_AGE_S
    while True:
        document = await gather(addresses, cluster, timeout_s, dsn)
        if not may_be_old(document) or dsn is not None or loop.time() > deadline_s:
            return document
        await asyncio.sleep(AGAIN_S)


def may_be_old(document: dict[str, Any]) -> bool:
    """Return True if commits wait for no quorum: the report may be older than an `attach`."""
    return any(reason["code"] == "unprotected" for reason in document["reasons"])


def with_verdict(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document with its verdict and reasons."""
    found = judge(document)
    reasons = [reason.shown() for reason in found.reasons]
    return {"verdict": found.shown(), "reasons": reasons, **document}


async def _ask_one(address: Address, cluster: str, timeout_s: float) -> dict[str, Any]:
    shown = {"address": shown_address(address), "reachable": False}
    asked_s = time()
    try:
        answer = await ask(address, StatusRequest(cluster), timeout_s)
    except Unreachable as error:
        return {**shown, "error": str(error), "hangs": isinstance(error, Hangs)}
    if isinstance(answer, Reject):
        return {**shown, "reachable": True, "error": answer.text}
    if not isinstance(answer, StatusResponse):
        return {**shown, "error": f"it answered with {type(answer).__name__}"}
    document: dict[str, Any] = json.loads(answer.document)
    if document.get("clock_s") is not None:  # the middle of the two is when it looked at its clock
        document["clock_skew_s"] = round(document["clock_s"] - (asked_s + time()) / 2, 3)
    return {**shown, "reachable": True, **document}


def _newest_facts(answers: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the newest configuration of the log that most answers are of, or None."""
    known = [answer["cluster"] for answer in answers if "cluster" in answer]
    logs = Counter(facts.get("log_uuid") for facts in known)
    rank = {log_uuid: (count, log_uuid or "") for log_uuid, count in logs.items()}
    return max(known, key=lambda f: (rank[f.get("log_uuid")], f["generation"])) if known else None


def _of_this_log(answer: dict[str, Any], facts: dict[str, Any] | None) -> dict[str, Any]:
    """Return the answer, or its identity and an error if it is of another log of this name."""
    if facts is None or "cluster" not in answer:
        return answer
    log_uuid, system_id = (answer["cluster"].get(name) for name in ("log_uuid", "system_id"))
    if log_uuid == facts.get("log_uuid"):
        return answer
    text = f"its log is {log_uuid} of system {system_id}, the others' is {facts['log_uuid']}"
    kept = {name: answer.get(name) for name in ("id", "address", "reachable", "version")}
    return {**kept, "error": text, "trouble": "wrong_log"}


def _everyone(facts: dict[str, Any]) -> set[str]:
    """Return the members of each set, and the learners."""
    wanted = facts["target"]["members"] if is_learning(facts) else ()
    return {*wanted, *(member for each in sets_of(facts) for member in each.members)}


def _line(answer: dict[str, Any], facts: dict[str, Any] | None) -> dict[str, Any]:
    line = {name: answer.get(name) for name in ("id", "address", "reachable", *COLUMNS)}
    line["hangs"] = bool(answer.get("hangs"))
    line["standbys"] = answer.get("standbys") or []
    line["slots"] = answer.get("slots") or []
    line["history"] = answer.get("history") or []
    replaced = _replaced(answer, facts)
    line["error"] = answer.get("error") or answer.get("failure") or replaced
    line["trouble"] = answer.get("trouble") or ("replaced" if replaced else None)
    line["trouble"] = trouble_of(line)
    return line


def _replaced(answer: dict[str, Any], facts: dict[str, Any] | None) -> str | None:
    """Return the text for a replaced safekeeper that came back with its old disk, or None."""
    if facts is None or "cluster" not in answer or _member(answer) in _everyone(facts):
        return None
    known, newest = answer["cluster"]["generation"], facts["generation"]
    if known >= newest:
        return None
    members = ", ".join(str(member_id(member)) for member in facts["members"])
    return (
        f"safekeeper {_member(answer)} was replaced: it has the configuration of generation "
        f"{known}, and those of generation {newest} are {members}. Once they are well, stop it "
        "and remove this log's directory; standbys that it feeds get no new WAL"
    )


def _cluster(
    cluster: str, answers: Sequence[dict[str, Any]], facts: dict[str, Any] | None
) -> dict[str, Any]:
    known = [a for a in answers if "cluster" in a]
    empty = {"system_id": None, "generation": None, "ack_quorum": None, "term": None}
    empty |= {"replacing": None, "changing": None}
    if facts is None:
        unknown = {**empty, "commit_lsn": None, "timeline": None, "quorum": False}
        unknown |= {"proposer": None, "heard_by_quorum": False, "primary": None, "kind": None}
        unknown |= {"away": None}
        lists: dict[str, Any] = {"not_hearing": [], "members": [], "spares": [], "repair": None}
        zones = {"ack_zones": 0, "zones": [], "zone_failures": {}}
        return {"name": cluster, **unknown, **lists, **zones}
    known = [a for a in known if _member(a) in _everyone(facts)] or known
    serving = [a for a in known if not a.get("failure")]
    leader = _proposer(known)
    hearing = {_member(a) for a in serving if _hears(a, leader)}
    primary = _primary(known, leader)
    best = max(known, key=lambda a: (a["last_log_term"], Lsn.parse(a["flush_lsn"])))
    return {
        "name": cluster,
        "system_id": facts["system_id"],
        "generation": facts["generation"],
        "ack_quorum": facts["ack_quorum"],
        "term": max(a["term"] for a in known),
        "commit_lsn": str(max(Lsn.parse(a["commit_lsn"]) for a in known)),
        "timeline": best["timeline"],
        "sealed": best["sealed"],
        **closed_facts(facts, best, known, [_member(a) for a in known]),
        "quorum": have_quorum(facts, {_member(a) for a in serving}),
        "replacing": _replacing(facts, known),
        "changing": _changing(facts, known),
        "proposer": leader,
        "away": _reported_away(known, leader),
        "repair": (primary or {}).get("repair"),
        "primary": primary and {name: it for name, it in primary.items() if name != "repair"},
        "kind": best.get("kind"),
        "heard_by_quorum": have_quorum(facts, hearing),
        "not_hearing": sorted({a["id"] for a in serving if _member(a) not in hearing}),
        "members": facts["members"],
        "spares": facts.get("spares", []),
        **zone_facts(facts, hearing or {_member(a) for a in serving}),
        "segment_bytes": facts["segment_bytes"],
    }


def _member(answer: dict[str, Any]) -> str:
    return f"{answer['id']}#{answer['incarnation']}"


def _replacing(facts: dict[str, Any], known: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the member that leaves, the one that joins, and the bytes that it lacks, or None."""
    if not facts.get("joining"):
        return None
    return {
        "leaving": member_id(facts["leaving"]),
        "joining": member_id(facts["joining"]),
        "zone": set_of(facts["target"]).zone_of(facts["joining"]) if facts.get("target") else "",
        "is_learning": is_learning(facts),
        "bytes_to_go": _to_go({facts["joining"]}, known),
    }


def _changing(facts: dict[str, Any], known: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the change that is under way, if it is more or less than a replacement, or None."""
    target = facts.get("target")
    if not target or facts.get("joining"):
        return None
    old, new = set(facts["members"]), set(target["members"])
    ordered = sorted(new, key=member_id)
    return {
        "members": [member_id(member) for member in ordered],
        "ack_quorum": target["ack_quorum"],
        "ack_zones": target.get("ack_zones") or 0,
        "zones": [set_of(target).zone_of(member) for member in ordered if target.get("zones")],
        "leaving": sorted(map(member_id, old - new)),
        "joining": sorted(map(member_id, new - old)),
        "is_learning": is_learning(facts),
        "bytes_to_go": _to_go(new - old, known),
    }


def _to_go(newcomers: set[str], known: Sequence[dict[str, Any]]) -> int | None:
    """Return how much the newcomer with the least WAL lacks, or None if one has not joined."""
    commit_lsn = max(Lsn.parse(a["commit_lsn"]) for a in known)
    flushed = [Lsn.parse(a["flush_lsn"]) for a in known if _member(a) in newcomers]
    if not flushed or len(flushed) < len(newcomers):
        return None
    return max(0, commit_lsn - min(flushed))


def _proposer(known: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the proposer that leads in the greatest promised term, or None."""
    newest = max(a["term"] for a in known)
    heard = [a["proposer"] for a in known if a["proposer"] and a["term"] == newest]
    return heard[0] if heard else None


def _primary(
    known: Sequence[dict[str, Any]], leader: dict[str, Any] | None
) -> dict[str, Any] | None:
    """Return the newest report of the proposer that leads, or None."""
    reports = [a["primary"] for a in known if _hears(a, leader) and a.get("primary")]
    return max(reports, key=lambda primary: primary["since"] or "", default=None)


def _reported_away(
    known: Sequence[dict[str, Any]], leader: dict[str, Any] | None
) -> list[dict[str, Any]] | None:
    """Return the members without an answer to the leading proposer, or None without a report.

    Each safekeeper has the last report that it received. The one with the newest absence counts."""
    reports = [a["away"] for a in known if _hears(a, leader) and a.get("away") is not None]
    return max(
        reports,
        key=lambda away: max((each["since"] or "" for each in away), default=""),
        default=None,
    )


def _hears(answer: dict[str, Any], leader: dict[str, Any] | None) -> bool:
    """Return True if the safekeeper follows `leader`, and so acknowledges its WAL."""
    heard = answer["proposer"]
    return leader is not None and heard is not None and heard["id"] == leader["id"]


def verdict(document: dict[str, Any], ignored: Collection[str] = ()) -> tuple[int, str]:
    """Return the exit code of --check, and one sentence; warnings of these codes do not count."""
    found = ignoring(judge(document), ignored)
    return int(found.state), found.text


def state_of(line: dict[str, Any]) -> str:
    """Return `ok`, `DOWN` without an answer, or `ERROR` if the answer is a reason."""
    if not line["reachable"]:
        return "DOWN"
    return "ERROR" if line["error"] else "ok"


def table(document: dict[str, Any]) -> str:
    """Return the status as a table for people."""
    cluster, found = document["cluster"], judge(document)
    positions = ["flush_lsn", "commit_lsn", "restart_lsn"]
    if any(line["archived_lsn"] for line in document["safekeepers"]):
        positions.append("archived_lsn")
    if any(line["end_lsn"] for line in document["safekeepers"]):  # in a logical log
        positions.append("end_lsn")
    head = ("id", "address", "state", "term", *positions, "standbys")
    rows: list[tuple[str, ...]] = [head]
    for line in document["safekeepers"]:
        state = state_of(line)
        lsns = [line[name] or "-" for name in positions]
        term = "-" if line["term"] is None else str(line["term"])
        standbys = ",".join(s["application_name"] for s in line["standbys"]) or "-"
        rows.append((str(number_of(line) or "-"), line["address"], state, term, *lsns, standbys))
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    padded = [[c.ljust(w) for c, w in zip(row, widths, strict=True)] for row in rows]
    text = ["  ".join(row).rstrip() for row in padded]
    proposer = cluster["proposer"]
    leader = f"{proposer['application_name']} at {proposer['address']}" if proposer else "none"
    facts = (
        f"; generation {cluster['generation']}, term {cluster['term']}, commit_lsn "
        f"{cluster['commit_lsn']}, timeline {cluster['timeline']}, proposer {leader}"
    )
    marks = "; sealed" if cluster.get("sealed") else ""
    marks += f"; closed at {cluster['closed_lsn']}" if cluster.get("closed_lsn") else ""
    shown = f"{facts}{marks}" if cluster["members"] else ""
    text.append(f"cluster {cluster['name']}: {found.text}{shown}")
    if cluster["members"]:
        primary = primary_line(cluster.get("primary"), cluster.get("dsn_error"))
        closed = "; `walkeeper gate` keeps it closed to clients" if is_gated(cluster) else ""
        text.append(f"primary: {primary}{closed}")
    text += [*zone_lines(cluster), *spare_lines(document)]
    broken = [line for line in document["safekeepers"] if line["error"]]
    text += [f"  {_error_of(line)}" for line in broken]
    text += _versions(document["safekeepers"])
    text += [line for each in document["safekeepers"] for line in (*_kept(each), *_lacks(each))]
    text += _what_to_do(found)
    if archive := archive_line(document["safekeepers"]):
        text.append(archive)
    archives = [reason.text for reason in found.reasons if reason.code == "archive"]
    text += [f"  {each}" for each in archives if each not in found.text]
    return "\n".join(map(printable, text))  # peers choose their names


def _error_of(line: dict[str, Any]) -> str:
    """Return a member's error, which begins with its name."""
    name, error = name_of(line), str(line["error"])
    known = (name, f"safekeeper at {line['address']}")
    return error if error.startswith(known) else f"{name}: {error}"


def _what_to_do(found: Verdict) -> list[str]:
    """Return a line for each reason with its remedy; those of the archive have their own."""
    return [
        f"  {reason.state.name} {reason.code}{_of(reason.whose)}{_since(reason.since)}: "
        f"{reason.remedy}"
        for reason in found.reasons
        if reason.code != "archive"
    ]


def _of(whose: str) -> str:
    return f" of {whose}" if whose else ""


def _since(since: str | None) -> str:
    return f" since {since}" if since else ""


def primary_line(primary: dict[str, Any] | None, dsn_error: str | None = None) -> str:
    """Return the primary's state for people, which is the proposer's report after an error."""
    if primary is None:
        return f"not known; --dsn: {dsn_error}" if dsn_error else "not known; --dsn asks it"
    if not primary["connected"]:
        return f"no connection{_since(primary['since'])}"
    streams = "streaming" if primary["streaming"] else "not streaming"
    doubt = f" ({primary['error']})" if primary["error"] else ""
    state = primary["sync_state"] or f"with a sync_state that is not known{doubt}"
    waits = f", {waiting_commits(primary)}{_since(primary['waiting_since'])}"
    return f"{streams}, {state}{_since(primary['since'])}{waits if primary['waiting'] else ''}"


def _versions(lines: Sequence[dict[str, Any]]) -> list[str]:
    """Return a line with the versions if they differ."""
    found = {name_of(line): line["version"] for line in lines if line.get("version")}
    if len(set(found.values())) < 2:
        return []
    return ["  versions differ: " + ", ".join(f"{n} {v}" for n, v in found.items())]


def _kept(line: dict[str, Any]) -> list[str]:
    """Return a line with a member's slots and kept WAL if it keeps WAL for a client."""
    slots = line.get("slots") or []
    if not slots or line.get("kept_bytes") is None:
        return []
    names = ", ".join(slot["slot_name"] for slot in slots)
    whom = f" for {line['kept_for']}" if line.get("kept_for") else ""
    return [f"  {name_of(line)}: slots {names}; keeps {line['kept_bytes']:,} bytes{whom}"]


def _lacks(line: dict[str, Any]) -> list[str]:
    """Return a line about older WAL that other members hold and this one is to have (M6)."""
    if not line.get("lacks_bytes"):
        return []
    reason = line.get("lacks_reason")
    how = f"is not copied: {reason}" if reason else "is being copied to it"
    lacks = f"lacks {line['lacks_bytes']:,} bytes of WAL before {line['first_lsn']}"
    return [f"  under-replicated: {name_of(line)} {lacks}, which other members hold; it {how}"]
