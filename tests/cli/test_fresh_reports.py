"""A report from before an attach is no warning: `status` and `check` ask again. Pure."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.cli.status_documents import document, line
from walkeeper_admin import logs, status
from walkeeper_admin.status import REPORT_AGE_S, gather_fresh, with_verdict
from walkeeper_proposer.postgres.sync_state import ASK_AGAIN_S
from walkeeper_proposer.reporting import LOOK_S

LEADER = {"id": "aa", "address": "p", "application_name": "walkeeper"}


class Reports:
    """Answers `gather` with these sync_states of the primary, one after the other."""

    def __init__(self, *states: str) -> None:
        self.asked = 0
        self._states = states

    async def gather(self, *_: object) -> dict[str, Any]:
        state = self._states[min(self.asked, len(self._states) - 1)]
        self.asked += 1
        found = document(*(line(number) for number in (1, 2, 3)))
        found["cluster"] |= {
            "quorum": True, "proposer": LEADER, "dsn_error": None, "primary": {
                "connected": True, "streaming": True, "sync_state": state, "since": None,
                "waiting": 0, "waiting_since": None, "lowered": [], "error": None,
            },
        }  # fmt: skip
        return with_verdict(found)


@pytest.mark.parametrize(
    ("states", "dsn", "asked", "state"),
    [
        (("sync",), None, 1, "OK"),
        (("async", "async", "sync"), None, 3, "OK"),
        (("async", "sync"), "host=db1", 1, "WARNING"),  # the primary's own answer is no report
    ],
    ids=("attached", "just attached", "asked"),
)
def test_a_report_from_before_an_attach_is_no_warning(
    states: tuple[str, ...],
    dsn: str | None,
    asked: int,
    state: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`attach && check` saw "no commit waits for the quorum", for up to 1.5 s."""
    reports = Reports(*states)
    monkeypatch.setattr(status, "gather", reports.gather)
    monkeypatch.setattr(status, "AGAIN_S", 0.001)
    found = asyncio.run(gather_fresh((), "main", 1.0, dsn))
    assert (found["verdict"]["state"], reports.asked) == (state, asked)


def test_a_primary_that_stays_detached_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    reports = Reports("async")
    monkeypatch.setattr(status, "gather", reports.gather)
    monkeypatch.setattr(status, "AGAIN_S", 0.001)
    monkeypatch.setattr(status, "REPORT_AGE_S", 0.05)
    found = asyncio.run(gather_fresh((), "main", 1.0, None))
    assert found["verdict"]["state"] == "WARNING" and reports.asked > 1


@pytest.mark.parametrize(
    ("states", "asked", "state"),
    [
        (("sync",), 1, "OK"),
        (("async", "sync"), 2, "OK"),
        (("async",), 2, "WARNING"),
    ],
    ids=("attached", "just attached", "detached"),
)
def test_the_list_of_logs_asks_again(
    states: tuple[str, ...], asked: int, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def names(*_: object) -> list[str]:
        return ["main"]

    reports = Reports(*states)
    monkeypatch.setattr(logs, "names", names)
    monkeypatch.setattr(logs, "gather", reports.gather)
    monkeypatch.setattr(logs, "REPORT_AGE_S", 0.001)
    (found,) = asyncio.run(logs.listed((), 1.0))
    assert (found["verdict"]["state"], reports.asked) == (state, asked)


def test_the_time_is_that_of_the_proposers_questions_and_reports() -> None:
    assert REPORT_AGE_S > ASK_AGAIN_S + LOOK_S
