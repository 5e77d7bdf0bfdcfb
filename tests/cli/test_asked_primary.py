"""`status --dsn`: the primary's own answer, and what only the proposer's report knows. Pure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.cli.status_documents import LEADER, asked
from walkeeper_admin.check.finding import Grade
from walkeeper_admin.check.status_checks import from_status
from walkeeper_admin.primary.door import STATE_PARAMETER
from walkeeper_admin.primarys_answer import IS_SUPERUSER, asked_primary
from walkeeper_admin.status import table
from walkeeper_common.errors import Refused
from walkeeper_lab.live_status import primary_state
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
    let_answer(answer, monkeypatch)
    found: dict[str, Any] = asyncio.run(asked_primary("host=db1", LEADER, report))["primary"]
    return found


def let_answer(
    answer: Commits | Refused, monkeypatch: pytest.MonkeyPatch, gate: str | None = None
) -> None:
    """Let the primary give this answer to each SQL session; `gate` is the state of its door."""

    class Sql:
        async def fetchval(self, statement: str, *parameters: object) -> str | bool | None:
            if statement == IS_SUPERUSER:
                return False
            assert parameters[0] == STATE_PARAMETER
            return gate

    @asynccontextmanager
    async def connected(dsn: str) -> AsyncIterator[Sql]:
        yield Sql()

    async def commits(*_: object) -> Commits:
        if isinstance(answer, Refused):
            raise answer
        return answer

    monkeypatch.setattr(primary_sql, "connected", connected)
    monkeypatch.setattr(sync_state, "commits_of", commits)


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
    ],
    ids=("same", "changed", "alone", "hidden", "still hidden", "nobody", "absent"),
)
def test_the_primary_answers_for_itself(
    answer: Commits,
    report: dict[str, Any] | None,
    facts: tuple[bool, bool, str | None, str | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a role that sees no state `--check` ended with 2: the primary did not stream."""
    found = told(answer, report, monkeypatch)
    names = ("connected", "streaming", "sync_state", "since")
    assert tuple(found[name] for name in names) == facts
    assert found.keys() == REPORT.keys()


WRONG = 'no SQL connection to the primary: password authentication failed for user "watch"'
ALONE = f"`--dsn` gets no answer, so the primary's state is as its proposer reports it: {WRONG}"
BOTH = f"neither `--dsn` nor the proposer gets an answer from the primary: {WRONG}"
NEITHER = f"`--dsn` gets no answer, and no proposer reports the primary's state: {WRONG}"


@pytest.mark.parametrize(
    ("report", "state", "code", "text"),
    [
        (REPORT, "WARNING", "primary_not_asked", f"degraded: {ALONE}"),
        ({**REPORT, "error": "no answer"}, "CRITICAL", "primary_down", BOTH),
        ({**REPORT, "streaming": False}, "CRITICAL", "not_streaming", "does not stream"),
        ({**REPORT, "connected": False}, "CRITICAL", "primary_down", "the proposer has no"),
        (None, "CRITICAL", "primary_not_asked", NEITHER),
    ],
    ids=("well", "both", "not streaming", "down", "no report"),
)
def test_a_command_without_an_answer_says_whose_connection_failed(
    report: dict[str, Any] | None,
    state: str,
    code: str,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A wrong password of `status --dsn` was "the proposer has no connection to the primary"."""
    let_answer(Refused(WRONG), monkeypatch)
    heard = dict.fromkeys((1, 2, 3), LEADER)
    found = asked(heard, monkeypatch, extra={"primary": report}, dsn="host=db1")
    assert found["cluster"]["primary"] == report and found["cluster"]["dsn_error"] == WRONG
    first = found["reasons"][0]
    assert (first["state"], first["code"]) == (state, code)
    assert text in found["verdict"]["text"], found["verdict"]
    assert WRONG in " ".join(reason["text"] for reason in found["reasons"])
    assert any("mend --dsn" in reason["remedy"] for reason in found["reasons"])
    assert primary_state(found).endswith(f"({WRONG})")


def test_a_command_that_is_answered_has_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    let_answer(Commits("sync", streaming=True), monkeypatch)
    heard = dict.fromkeys((1, 2, 3), LEADER)
    for dsn in (None, "host=db1"):
        found = asked(heard, monkeypatch, extra={"primary": REPORT}, dsn=dsn)
        assert found["cluster"]["dsn_error"] is None and found["verdict"]["state"] == "OK"
        assert primary_state(found) == "walkeeper streaming as sync"


@pytest.mark.parametrize("ports", [(1, 2, 3), (1,)], ids=("quorum", "no quorum"))
def test_a_closed_primary_is_named(ports: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """`status` said that all is well while `walkeeper gate` kept every client out."""
    let_answer(Commits("sync", streaming=True), monkeypatch, gate="closed")
    found = asked(dict.fromkeys(ports, LEADER), monkeypatch, dsn="host=db1")
    assert found["cluster"]["gate"] == "closed" and found["verdict"]["state"] != "OK"
    (reason,) = [each for each in found["reasons"] if each["code"] == "gated"]
    assert reason["state"] == "CRITICAL" and "gate --wait" in reason["remedy"]
    shown = table(found).splitlines()
    assert "primary: streaming, sync; `walkeeper gate` keeps it closed to clients" in shown
    findings = {each.check: each for each in from_status(found)}
    assert findings["gate"].grade is Grade.FAILED and findings["gate"].why == "clients are refused"


@pytest.mark.parametrize("gate", ["open", None])
def test_a_primary_that_is_open_has_no_reason(
    gate: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_answer(Commits("sync", streaming=True), monkeypatch, gate=gate)
    found = asked(dict.fromkeys((1, 2, 3), LEADER), monkeypatch, dsn="host=db1")
    assert found["cluster"]["gate"] == gate and found["verdict"]["state"] == "OK"
    assert "closed to clients" not in table(found)


class Session:
    """Answers commits_of as a server whose rows are these."""

    def __init__(self, rows: list[dict[str, str | bool | None]]) -> None:
        self._rows = rows

    async def fetch(self, statement: str, *_: object) -> list[dict[str, str | bool | None]]:
        return self._rows if statement == sync_state.QUERY else []

    async def fetchrow(self, _: str) -> dict[str, int]:
        return {"waiting": 0, "since": 0}

    async def fetchval(self, _: str) -> str:
        return "on"


@pytest.mark.parametrize(
    ("state", "streaming"), [(None, None), ("streaming", True), ("catchup", False)]
)
def test_a_hidden_state_is_not_known(state: str | None, streaming: bool | None) -> None:
    session: Any = Session([{"sync_state": None, "state": state, "is_new": False}])
    nobody: Any = Session([])
    assert asyncio.run(commits_of(session, "walkeeper")).streaming is streaming
    assert asyncio.run(commits_of(nobody, "walkeeper")).streaming is False


@pytest.mark.parametrize(
    ("sync_state", "state", "is_new", "known"),
    [
        ("async", "startup", True, None),
        ("potential", "catchup", False, None),
        ("potential", "streaming", False, "potential"),
        ("async", "catchup", False, "async"),
        ("async", "streaming", False, "async"),
        ("sync", "streaming", False, "sync"),
    ],
)
def test_a_walsender_that_has_just_begun_says_nothing_of_commits(
    sync_state: str, state: str, is_new: bool, known: str | None
) -> None:
    """The proposer logged that commits return without the quorum, a second before it took it back.

    A connection that catches up is potential, though commits wait for it.
    """
    session: Any = Session([{"sync_state": sync_state, "state": state, "is_new": is_new}])
    assert asyncio.run(commits_of(session, "walkeeper")).sync_state == known
