"""`walkeeper switchover`: each step that fails or is interrupted says how to go on from there."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace

import pytest

from tests.support.waiting import LIMIT_S
from walkeeper_admin import switchover
from walkeeper_admin.switchover import StandbyState, SwitchoverSettings, reason_against, switch_over
from walkeeper_common.errors import Refused
from walkeeper_common.lsn import Lsn
from walkeeper_proposer.postgres.primary_sql import NotConnected

READY = StandbyState(True, Lsn(5), "FIRST 1 (walkeeper)", ("walkeeper_follow",))
SETTINGS = SwitchoverSettings((("h1", 1),), "host=db1", "host=db2", "true")


@pytest.fixture
def _listens_to_ctrl_c() -> Iterator[None]:
    """A shell starts what runs in the background with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def stub(
    monkeypatch: pytest.MonkeyPatch, failing: str, fail: Callable[[], Awaitable[None]]
) -> None:
    """Let each step do nothing, and one step fail."""
    results = {
        "_flush_lsn": Lsn(5), "_standby_state": READY, "prepare": None, "_checkpoint": None,
        "_stop": None, "_bring_to_the_end": (Lsn(5), 2), "_promote": None,
    }  # fmt: skip

    def of(name: str) -> Callable[..., Awaitable[object]]:
        async def done(*_: object, **__: object) -> object:
            if name == failing:
                await fail()
            return results[name]

        return done

    for name in results:
        monkeypatch.setattr(switchover, name, of(name))


async def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)
    await asyncio.sleep(LIMIT_S)


async def refused() -> None:
    raise Refused("it failed")


async def not_connected() -> None:
    raise NotConnected("refused")


@pytest.mark.usefixtures("_listens_to_ctrl_c")
@pytest.mark.parametrize(
    ("failing", "wanted", "unwanted"),
    [
        ("_stop", "may have stopped the primary", "Mend this"),
        ("_bring_to_the_end", "settle --seal --replayed-by", "leave the old primary stopped"),
        ("_promote", "leave the old primary stopped", "--resume"),
    ],
)
def test_ctrl_c_says_how_to_go_on(
    failing: str, wanted: str, unwanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended without a word while no commit was possible."""
    stub(monkeypatch, failing, ctrl_c)
    said: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(switch_over(SETTINGS, say=said.append))
    assert wanted in said[-1] and unwanted not in said[-1], said


@pytest.mark.parametrize(
    ("failing", "wanted"),
    [("_bring_to_the_end", "Mend this and run `walkeeper settle"), ("_promote", "leave the old")],
)
def test_an_error_names_the_way_on_that_fits(
    failing: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the promotion it offered to start the old primary again."""
    stub(monkeypatch, failing, refused)
    with pytest.raises(Refused, match=f"^it failed. .*{wanted}") as error:
        asyncio.run(switch_over(SETTINGS, say=lambda _: None))
    assert ("--resume" in str(error.value)) is (failing == "_bring_to_the_end")


@pytest.mark.parametrize(
    ("failing", "wanted"),
    [("_flush_lsn", "^--primary: refused. No .* If the primary is stopped"),
     ("_standby_state", "^--standby: refused. The primary works on")],
)  # fmt: skip
def test_a_server_without_an_answer_is_named_by_its_option(
    failing: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby that was down was "the primary"; a second run did not say how to finish."""
    stub(monkeypatch, failing, not_connected)
    with pytest.raises(Refused, match=wanted):
        asyncio.run(switch_over(SETTINGS, say=lambda _: None))


def test_a_standby_that_replays_nothing_is_refused() -> None:
    """The primary was stopped, and the standby did not replay its last WAL."""
    assert reason_against(READY, Lsn(5)) is None
    reason = reason_against(replace(READY, held_back="its replay is paused"), Lsn(5))
    assert reason == "the standby replays nothing for now: its replay is paused"
