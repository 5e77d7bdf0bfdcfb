"""`status --dsn`: the primary's own answer, and what only the proposer's report knows. Pure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.cli.status_documents import LEADER
from walkeeper_admin.status import asked_primary
from walkeeper_common.errors import Refused
from walkeeper_proposer.postgres import primary_sql, sync_state
from walkeeper_proposer.postgres.sync_state import ABSENT, Commits, commits_of

SINCE = "2026-01-01T00:00:00Z"
REPORT: dict[str, Any] = {
    "connected": True, "streaming": True, "sync_state": "sync", "since": SINCE, "waiting": 0,
    "waiting_since": None, "lowered": [], "error": None,
}  # fmt: skip


def told(
    answer: Commits | Refused, report: dict[str, Any] | None, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    @asynccontextmanager
    async def connected(dsn: str) -> AsyncIterator[None]:
        yield None

    async def commits(*_: object) -> Commits:
        if isinstance(answer, Refused):
            raise answer
        return answer

    monkeypatch.setattr(primary_sql, "connected", connected)
    monkeypatch.setattr(sync_state, "commits_of", commits)
    return asyncio.run(asked_primary("host=db1", LEADER, report))


@pytest.mark.parametrize(
    ("answer", "report", "facts"),
    [
        (Commits("sync", streaming=True), REPORT, (True, True, "sync", SINCE)),
        (Commits("async", streaming=True), REPORT, (True, True, "async", None)),
        (Commits("sync", streaming=True), None, (True, True, "sync", None)),
        (Commits(None, streaming=None), REPORT, (True, True, None, None)),
        (Commits(None, streaming=None), {**REPORT, "sync_state": None}, (True, True, None, SINCE)),
        (Commits(None, streaming=None), None, (True, False, None, None)),
        (Commits(ABSENT), REPORT, (False, False, ABSENT, None)),
        (Refused("no SQL connection"), REPORT, (False, False, None, None)),
    ],
    ids=("same", "changed", "alone", "hidden", "still hidden", "nobody", "absent", "down"),
)
def test_the_primary_answers_for_itself(
    answer: Commits | Refused,
    report: dict[str, Any] | None,
    facts: tuple[bool, bool, str | None, str | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a role that sees no state `--check` ended with 2: the primary did not stream."""
    found = told(answer, report, monkeypatch)
    names = ("connected", "streaming", "sync_state", "since")
    assert tuple(found[name] for name in names) == facts
    assert found.keys() == REPORT.keys()


class Session:
    """Answers commits_of as a server whose rows are these."""

    def __init__(self, rows: list[dict[str, str | None]]) -> None:
        self._rows = rows

    async def fetch(self, statement: str, *_: object) -> list[dict[str, str | None]]:
        return self._rows if statement == sync_state.QUERY else []

    async def fetchrow(self, _: str) -> dict[str, int]:
        return {"waiting": 0, "since": 0}

    async def fetchval(self, _: str) -> str:
        return "on"


@pytest.mark.parametrize(
    ("state", "streaming"), [(None, None), ("streaming", True), ("catchup", False)]
)
def test_a_hidden_state_is_not_known(state: str | None, streaming: bool | None) -> None:
    session: Any = Session([{"sync_state": None, "state": state}])
    nobody: Any = Session([])
    assert asyncio.run(commits_of(session, "walkeeper")).streaming is streaming
    assert asyncio.run(commits_of(nobody, "walkeeper")).streaming is False
