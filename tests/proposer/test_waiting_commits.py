"""A proposer whose WAL waits asks its primary at once for the commits that wait. Pure."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.waiting import until
from walkeeper_common.lsn import Lsn
from walkeeper_proposer import incidents, reporting
from walkeeper_proposer.postgres import sync_state as asking
from walkeeper_proposer.postgres.sync_state import Commits, SyncState
from walkeeper_proposer.reporting import PrimaryReporter

WELL, HANGING = Commits("sync"), Commits("sync", waiting=3, waiting_since=7)
NEVER_S, SOON_S = 1e6, 20.0


class Answers(SyncState):
    """Gives these answers one after another, and repeats the last one."""

    def __init__(self, answers: Sequence[Commits]) -> None:
        super().__init__("", "walkeeper")
        self._answers, self.asked = list(answers), 0

    async def _asked(self) -> Commits:
        self.asked += 1
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let only a reason to ask again end a pause."""
    monkeypatch.setattr(asking, "ASK_S", NEVER_S)
    monkeypatch.setattr(asking, "ASK_AGAIN_S", 0.01)
    monkeypatch.setattr(reporting, "LOOK_S", 0.01)
    monkeypatch.setattr(incidents, "HANG_S", 0.02)


def test_a_request_to_ask_soon_ends_the_pause_and_the_end_of_a_hang_is_seen_soon() -> None:
    async def run() -> int:
        state = Answers([WELL, HANGING, HANGING, WELL])
        watching = asyncio.create_task(state.watch())
        await until(lambda: state.commits == WELL, SOON_S)
        state.ask_soon()
        await until(lambda: state.commits == HANGING, SOON_S)
        await until(lambda: state.commits == WELL, SOON_S)
        watching.cancel()
        return state.asked

    assert asyncio.run(run()) == 4


@pytest.mark.parametrize(
    ("end_lsn", "is_asked"), [(Lsn(200), True), (Lsn(100), False)], ids=("waits", "well")
)
def test_wal_without_a_quorum_lets_the_primary_be_asked_soon(
    end_lsn: Lsn, is_asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    async def run() -> bool:
        state = Answers([WELL])
        asked: list[int] = []
        monkeypatch.setattr(state, "ask_soon", lambda: asked.append(looks))
        reporter = PrimaryReporter("main", core, lambda: (("h1", 1),), state)
        watching = asyncio.create_task(reporter.watch())
        await until(lambda: bool(asked) or looks > 20)
        watching.cancel()
        return bool(asked)

    def core() -> Any:
        nonlocal looks
        looks += 1
        member = SimpleNamespace(link=0, name="1#00", attached=True)
        sets = SimpleNamespace(holders_min=1, sets=())
        window = SimpleNamespace(end_lsn=end_lsn)
        leader = SimpleNamespace(configuration=sets, commit_lsn=Lsn(100), window=window)
        return SimpleNamespace(leader=leader, members=[member])

    assert asyncio.run(run()) is is_asked
