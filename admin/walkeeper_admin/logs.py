"""The logs of a set of safekeepers: list them, and drop one that nobody uses. A shell.

A drop asks every member before it changes anything. It may be repeated after it was killed, and
goes on: members that have dropped the log answer that they have none.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from walkeeper_admin.status import REPORT_AGE_S, gather, may_be_old
from walkeeper_common.addresses import Address, shown_address
from walkeeper_common.errors import Refused, Unreachable
from walkeeper_common.shell.safekeeper_links.safekeeper_client import ask
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.log_removal import DropLog
from walkeeper_common.wire.messages import Reject
from walkeeper_common.wire.requests import LogQuery, LogState, StatusRequest, StatusResponse

NO_LOG = bytes(16)


async def names(addresses: Sequence[Address], timeout_s: float) -> list[str]:
    """Return the names of all logs of these safekeepers; raise Refused if none answers."""
    question = StatusRequest("main")
    answers = await asyncio.gather(*(_asked(each, question, timeout_s) for each in addresses))
    documents = [json.loads(a.document) for a in answers if isinstance(a, StatusResponse)]
    if not documents:
        raise Refused("; ".join(map(str, answers)))
    return sorted({name for each in documents for name in each.get("logs", each["clusters"])})


async def listed(addresses: Sequence[Address], timeout_s: float) -> list[dict[str, Any]]:
    """Return the document of `status` for each log.

    Ask once more, REPORT_AGE_S later, about a log whose report may be older than its `attach`."""
    found = await names(addresses, timeout_s)
    documents = [await gather(addresses, name, timeout_s) for name in found]
    if any(map(may_be_old, documents)):
        await asyncio.sleep(REPORT_AGE_S)
    return [
        await gather(addresses, name, timeout_s) if may_be_old(document) else document
        for name, document in zip(found, documents, strict=True)
    ]


def rows(documents: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return a table for people, with its head."""
    table: list[tuple[str, ...]] = [("name", "kind", "members", "commit_lsn", "proposer", "state")]
    for document in documents:
        cluster = document["cluster"]
        members = ",".join(str(line["id"]) for line in document["safekeepers"] if line["flush_lsn"])
        leader = cluster["proposer"]
        table.append(
            (
                cluster["name"],
                cluster["kind"] or "-",
                members or "-",
                cluster["commit_lsn"] or "-",
                leader["application_name"] if leader else "none",
                document["verdict"]["text"],
            )
        )
    return table


async def drop(addresses: Sequence[Address], cluster: str, timeout_s: float) -> list[str]:
    """Drop the log on all its members, and return a line for each.

    Raise Refused, with nothing dropped, if a member does not answer or if the log is in use.
    """
    document = await gather(addresses, cluster, timeout_s)
    _refuse_in_use(document)
    states = await asyncio.gather(*(_asked(a, LogQuery(cluster), timeout_s) for a in addresses))
    log_uuid = _log_uuid(states, cluster)
    lines: list[str] = []
    for address in addresses:
        answer = await _asked(address, DropLog(cluster, log_uuid), timeout_s)
        if isinstance(answer, Reject):
            raise Refused(f"{'; '.join([*lines, answer.text])}. Run this again afterwards")
        if not isinstance(answer, LogState):
            raise Refused(f"{'; '.join([*lines, str(answer)])}. Run this again afterwards")
        lines.append(f"safekeeper {answer.acceptor_id}: dropped {log_uuid.hex()}")
    return lines


def _refuse_in_use(document: dict[str, Any]) -> None:
    lines, cluster = document["safekeepers"], document["cluster"]
    away = [line["address"] for line in lines if not line["reachable"]]
    if away:
        raise Refused(f"{', '.join(away)} does not answer, and would keep the log: start it first")
    asked = {f"{line['id']}#{line['incarnation']}" for line in lines}
    missing = [name for name in cluster["members"] if name not in asked]
    if missing:
        text = ", ".join(name.partition("#")[0] for name in missing)
        raise Refused(f"safekeeper {text} has the log too: name all members with --safekeepers")
    if cluster["proposer"] is not None:
        name = cluster["proposer"]["application_name"]
        raise Refused(f"proposer {name} leads {cluster['name']}: detach, and stop it first")
    readers = sorted({s["application_name"] for line in lines for s in line["standbys"]})
    if readers:
        raise Refused(f"{', '.join(readers)} stream from {cluster['name']}: stop them first")


def _log_uuid(states: Sequence[Message | Unreachable], cluster: str) -> bytes:
    failed = [each for each in states if not isinstance(each, LogState)]
    if failed:
        raise Refused(str(failed[0].text if isinstance(failed[0], Reject) else failed[0]))
    found = {each.log_uuid for each in states if isinstance(each, LogState)} - {NO_LOG}
    if not found:
        raise Refused(
            f"no safekeeper has a log of cluster {cluster!r}; `walkeeper logs ls` lists the logs"
        )
    if len(found) > 1:
        shown = ", ".join(each.hex() for each in sorted(found))
        raise Refused(
            f"these safekeepers have different logs of {cluster!r} ({shown}): name the members of "
            "one log with --safekeepers"
        )
    return found.pop()


async def _asked(address: Address, question: Message, timeout_s: float) -> Message | Unreachable:
    try:
        return await ask(address, question, timeout_s)
    except Unreachable as error:
        return Unreachable(f"{shown_address(address)}: {error}")
