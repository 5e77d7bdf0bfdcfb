"""Documents of `status` for tests, from what each member answers. Pure.

asked({1: LEADER, 2: DEAF}, monkeypatch)     safekeeper 3 is down
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from walkeeper_admin import status
from walkeeper_admin.status import gather
from walkeeper_common.addresses import Address
from walkeeper_common.errors import Unreachable
from walkeeper_common.wire.requests import StatusResponse

MEMBERS = ["1#a", "2#b", "3#c"]
LEADER = {"id": "aa", "address": "p", "application_name": "walkeeper"}
OTHER = {**LEADER, "id": "bb"}
DEAF = None  # it answers, and no proposer is connected to it


def line(number: int | None, **facts: Any) -> dict[str, Any]:
    answered = number is not None
    return {
        "id": number, "address": f"h{number}:1", "reachable": answered, "error": None,
        "term": 4 if answered else None, "timeline": 1, "standbys": [], "archived_lsn": None,
        "flush_lsn": "0/5", "commit_lsn": "0/5", "restart_lsn": "0/1", "end_lsn": None,
        "archive": None, **facts,
    }  # fmt: skip


def document(
    *lines: dict[str, Any], members: list[str] = MEMBERS, system_id: int | None = 6
) -> dict[str, Any]:
    cluster = {
        "name": "main", "system_id": system_id and str(system_id), "generation": 1, "term": 4,
        "commit_lsn": "0/5", "timeline": 1,
        "quorum": False, "proposer": None, "members": members, "replacing": None,
        "segment_bytes": 1 << 24, "heard_by_quorum": True, "not_hearing": [],
    }  # fmt: skip
    return {"cluster": cluster, "safekeepers": list(lines)}


DOWN, AWAY = line(None, error="unreachable"), "hNone:1 (does not answer)"


def asked(
    heard: dict[int, Any],
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, str] | None = None,
    ports: tuple[int, ...] = (1, 2, 3),
    newer: Mapping[int, dict[str, Any]] = MappingProxyType({}),
    extra: Mapping[str, Any] = MappingProxyType({}),
    dsn: str | None = None,
) -> dict[str, Any]:
    """Return the document of status; a member that is not in `heard` is down.

    `newer` has the newer configuration of the members that know one.
    """
    facts = {
        "system_id": "7", "generation": 1, "ack_quorum": 2, "members": MEMBERS,
        "segment_bytes": 1 << 24, **(change or {}),
    }  # fmt: skip

    async def answer(address: Address, *_: object) -> StatusResponse:
        number = int(address[0].removeprefix("h"))
        if number not in heard:
            raise Unreachable("connection refused")
        told = {
            **line(number), "incarnation": "abcd"[number - 1], "proposer": heard[number],
            "term": 3 if heard[number] is OTHER else 4, "last_log_term": 4, "sealed": False,
            "cluster": {**facts, **newer.get(number, {})}, **extra,
        }  # fmt: skip
        return StatusResponse(json.dumps(told).encode())

    monkeypatch.setattr(status, "ask", answer)
    numbers = sorted({*ports, *heard})
    return asyncio.run(gather([(f"h{number}", 1) for number in numbers], "main", 1.0, dsn))
