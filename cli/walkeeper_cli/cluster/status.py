"""`walkeeper status`: one line a safekeeper and one for the cluster, saying who blocks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from walkeeper_cli.cluster.archive_status import archive_line, archive_troubles
from walkeeper_cli.cluster.safekeeper_client import Unreachable, ask
from walkeeper_common.addresses import Address, shown_address
from walkeeper_common.lsn import Lsn
from walkeeper_common.printable import printable
from walkeeper_common.quorum import member_id
from walkeeper_common.wire.messages import Reject
from walkeeper_common.wire.requests import StatusRequest, StatusResponse

OK, DEGRADED, NO_QUORUM = 0, 1, 2
COLUMNS = (
    "version",
    "incarnation",
    "term",
    "last_log_term",
    "flush_lsn",
    "commit_lsn",
    "restart_lsn",
    "archived_lsn",
    "archive",
    "kind",
    "end_lsn",
    "needed_lsn",
    "timeline",
    "standbys",
)


async def gather(addresses: Sequence[Address], cluster: str, timeout_s: float) -> dict[str, Any]:
    """The document of `status --json` (docs/reference/status-json.md)."""
    answers = await asyncio.gather(*(_ask_one(a, cluster, timeout_s) for a in addresses))
    facts = _newest_facts(answers)
    lines = [_line(answer, facts) for answer in answers]
    return {"cluster": _cluster(cluster, answers, facts), "safekeepers": lines}


async def _ask_one(address: Address, cluster: str, timeout_s: float) -> dict[str, Any]:
    shown = {"address": shown_address(address), "reachable": False}
    try:
        answer = await ask(address, StatusRequest(cluster), timeout_s)
    except Unreachable as error:
        return {**shown, "error": str(error)}
    if isinstance(answer, Reject):
        return {**shown, "reachable": True, "error": answer.text}
    if not isinstance(answer, StatusResponse):
        return {**shown, "error": f"it answered with {type(answer).__name__}"}
    return {**shown, "reachable": True, **json.loads(answer.document)}


def _newest_facts(answers: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The configuration as those know it who know the newest."""
    told = [answer["cluster"] for answer in answers if "cluster" in answer]
    return max(told, key=lambda facts: facts["generation"]) if told else None


def _everyone(facts: dict[str, Any]) -> set[str]:
    return {*facts["members"], facts.get("joining")}


def _line(answer: dict[str, Any], facts: dict[str, Any] | None) -> dict[str, Any]:
    line = {name: answer.get(name) for name in ("id", "address", "reachable", *COLUMNS)}
    line["standbys"] = answer.get("standbys") or []
    line["slots"] = answer.get("slots") or []
    line["error"] = answer.get("error") or answer.get("failure") or _replaced(answer, facts)
    return line


def _replaced(answer: dict[str, Any], facts: dict[str, Any] | None) -> str | None:
    """Of one that came back with its old disk, and whom nobody has told."""
    if facts is None or "cluster" not in answer or _member(answer) in _everyone(facts):
        return None
    known, newest = answer["cluster"]["generation"], facts["generation"]
    if known >= newest:
        return None
    members = ", ".join(str(member_id(member)) for member in facts["members"])
    return (
        f"safekeeper {_member(answer)} was replaced: it has the configuration of generation "
        f"{known}, and those of generation {newest} are {members}. Stop it and remove its "
        "directory; standbys that it feeds get no new WAL"
    )


def _cluster(
    cluster: str, answers: Sequence[dict[str, Any]], facts: dict[str, Any] | None
) -> dict[str, Any]:
    known = [a for a in answers if "cluster" in a]
    empty = {"system_id": None, "generation": None, "ack_quorum": None, "term": None}
    empty |= {"replacing": None}
    if facts is None:
        unknown = {**empty, "commit_lsn": None, "timeline": None, "quorum": False}
        unknown |= {"proposer": None, "heard_by_quorum": False}
        return {"name": cluster, **unknown, "not_hearing": [], "members": []}
    known = [a for a in known if _member(a) in _everyone(facts)] or known
    serving = [a for a in known if not a.get("failure")]
    leader = _proposer(known)
    hearing = {_member(a) for a in serving if _hears(a, leader)}
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
        "quorum": _have_quorum(facts, {_member(a) for a in serving}),
        "replacing": _replacing(facts, known),
        "proposer": leader,
        "heard_by_quorum": _have_quorum(facts, hearing),
        "not_hearing": sorted({a["id"] for a in serving if _member(a) not in hearing}),
        "members": facts["members"],
        "segment_bytes": facts["segment_bytes"],
    }


def _member(answer: dict[str, Any]) -> str:
    return f"{answer['id']}#{answer['incarnation']}"


def _have_quorum(facts: dict[str, Any], serving: set[str]) -> bool:
    """Of the members, and while one is replaced of the new ones as well."""
    old = set(facts["members"])
    sets = [old, old - {facts["leaving"]} | {facts["joining"]}] if facts.get("joining") else [old]
    return all(len(members & serving) >= facts["ack_quorum"] for members in sets)


def _replacing(
    facts: dict[str, Any], known: Sequence[dict[str, Any]]
) -> dict[str, int | None] | None:
    """Who goes, who comes, and how many bytes that one lacks; None: nobody is replaced."""
    if not facts.get("joining"):
        return None
    commit_lsn = max(Lsn.parse(a["commit_lsn"]) for a in known)
    flushed = [Lsn.parse(a["flush_lsn"]) for a in known if _member(a) == facts["joining"]]
    return {
        "leaving": member_id(facts["leaving"]),
        "joining": member_id(facts["joining"]),
        "bytes_to_go": max(0, commit_lsn - flushed[0]) if flushed else None,
    }


def _proposer(known: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The one that leads in the greatest term that any safekeeper has promised."""
    newest = max(a["term"] for a in known)
    heard = [a["proposer"] for a in known if a["proposer"] and a["term"] == newest]
    return heard[0] if heard else None


def _hears(answer: dict[str, Any], leader: dict[str, Any] | None) -> bool:
    """Whether it follows the proposer that leads: nobody else acknowledges its WAL."""
    heard = answer["proposer"]
    return leader is not None and heard is not None and heard["id"] == leader["id"]


def verdict(document: dict[str, Any]) -> tuple[int, str]:
    """(exit code of --check, one sentence that says who blocks)."""
    cluster, lines = document["cluster"], document["safekeepers"]
    down = [_name(line) for line in lines if not line["reachable"] or line["error"]]
    if not cluster["quorum"]:
        return NO_QUORUM, _no_quorum(cluster, lines, down)
    if cluster["proposer"] is None:
        under_way = f"; {_shown_replacing(cluster['replacing'])}" if cluster["replacing"] else ""
        return NO_QUORUM, f"no proposer leads: commits of an attached primary hang{under_way}"
    deaf = [f"safekeeper {number}" for number in cluster["not_hearing"]]
    if not cluster["heard_by_quorum"]:
        unheard = [f"{name} (does not hear the proposer)" for name in deaf]
        return NO_QUORUM, _no_quorum(cluster, lines, [*down, *unheard])
    missing = sorted(_ids(cluster) - {line["id"] for line in lines if line["reachable"]})
    if cluster["replacing"]:
        return DEGRADED, f"degraded: {_shown_replacing(cluster['replacing'])}, commits go on"
    if down:
        return DEGRADED, f"degraded: {', '.join(down)} down, commits go on"
    if deaf:
        return DEGRADED, f"degraded: the proposer is not heard by {', '.join(deaf)}, commits go on"
    if missing:
        return DEGRADED, f"degraded: safekeeper {missing[0]} was not asked or is down"
    blocked = _lagging(cluster, lines)
    if blocked:
        return DEGRADED, f"degraded: {', '.join(blocked)} behind the quorum"
    if troubles := archive_troubles(lines):
        return DEGRADED, f"degraded: {troubles[0]}"
    return OK, "ok: every safekeeper has what is committed"


def _no_quorum(
    cluster: dict[str, Any], lines: Sequence[dict[str, Any]], blocking: Sequence[str]
) -> str:
    """Of the log as a whole nothing is said if those who could make the quorum were not asked."""
    silent = [line for line in lines if not line["reachable"]]
    if len(silent) == len(lines):
        return f"no quorum: none answers of {', '.join(blocking)}"
    if not cluster["members"]:
        return f"nobody who was asked tells of this log: {', '.join(blocking)}"
    heard = {line["id"] for line in lines if line["reachable"]}
    not_asked = len(_ids(cluster) - heard) - len(silent)
    if not_asked > 0:
        others = f"{not_asked} of its {len(cluster['members'])} safekeepers were not asked"
        return f"no quorum among those asked; {others}: name all with --safekeepers"
    return f"no quorum: commits hang; blocked by {', '.join(blocking)}"


def _shown_replacing(change: dict[str, Any]) -> str:
    to_go = change["bytes_to_go"]
    left = "which has not joined yet" if to_go is None else f"{to_go:,} bytes to go"
    return f"safekeeper {change['leaving']} is being replaced by {change['joining']}, {left}"


def _ids(cluster: dict[str, Any]) -> set[int]:
    return {member_id(member) for member in cluster["members"]}


def _lagging(cluster: dict[str, Any], lines: Sequence[dict[str, Any]]) -> list[str]:
    commit_lsn, timeline = Lsn.parse(cluster["commit_lsn"]), cluster["timeline"]
    segment = cluster["segment_bytes"]
    return [
        _name(line)
        for line in lines
        if line["timeline"] != timeline or commit_lsn - Lsn.parse(line["flush_lsn"]) > segment
    ]


def _name(line: dict[str, Any]) -> str:
    return f"safekeeper {line['id']}" if line["id"] is not None else f"{line['address']}"


def state_of(line: dict[str, Any]) -> str:
    """ok; DOWN: it does not answer; ERROR: it does, and says why it is of no use."""
    if not line["reachable"]:
        return "DOWN"
    return "ERROR" if line["error"] else "ok"


def table(document: dict[str, Any]) -> str:
    """For people."""
    cluster = document["cluster"]
    positions = ["flush_lsn", "commit_lsn", "restart_lsn"]
    if any(line["archived_lsn"] for line in document["safekeepers"]):
        positions.append("archived_lsn")
    if any(line["end_lsn"] for line in document["safekeepers"]):  # of a logical log: PostgreSQL's
        positions.append("end_lsn")
    head = ("id", "address", "state", "term", *positions, "standbys")
    rows: list[tuple[str, ...]] = [head]
    for line in document["safekeepers"]:
        state = state_of(line)
        lsns = [line[name] or "-" for name in positions]
        term = "-" if line["term"] is None else str(line["term"])
        standbys = ",".join(s["application_name"] for s in line["standbys"]) or "-"
        rows.append((str(line["id"] or "-"), line["address"], state, term, *lsns, standbys))
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    padded = [[c.ljust(w) for c, w in zip(row, widths, strict=True)] for row in rows]
    text = ["  ".join(row).rstrip() for row in padded]
    proposer = cluster["proposer"]
    leader = f"{proposer['application_name']} at {proposer['address']}" if proposer else "none"
    facts = (
        f"; generation {cluster['generation']}, term {cluster['term']}, commit_lsn "
        f"{cluster['commit_lsn']}, timeline {cluster['timeline']}, proposer {leader}"
    )
    text.append(
        f"cluster {cluster['name']}: {verdict(document)[1]}{facts if cluster['members'] else ''}"
    )
    broken = [line for line in document["safekeepers"] if line["error"]]
    text += [f"  {_name(line)}: {line['error']}" for line in broken]
    if archive := archive_line(document["safekeepers"]):
        text.append(archive)
    troubles = archive_troubles(document["safekeepers"])
    text += [f"  {each}" for each in troubles if each not in verdict(document)[1]]
    return "\n".join(map(printable, text))  # peers choose their names
