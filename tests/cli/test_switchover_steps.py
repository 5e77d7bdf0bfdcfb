"""`walkeeper switchover`: each step that fails or is interrupted says how to go on from there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from walkeeper_admin import switchover
from walkeeper_admin.switchover import StandbyState, SwitchoverSettings, reason_against, switch_over
from walkeeper_common.errors import Refused
from walkeeper_common.lsn import Lsn
from walkeeper_proposer.postgres.primary_sql import NotConnected

READY = StandbyState(True, Lsn(5), "FIRST 1 (walkeeper)", ("walkeeper_follow",))
SETTINGS = SwitchoverSettings((("h1", 1),), "host=db1", "host=db2", "true")


def stub(monkeypatch: pytest.MonkeyPatch, failing: str, error: Callable[[], BaseException]) -> None:
    """Let each step do nothing, and one step fail."""
    results = {
        "_flush_lsn": Lsn(5), "_standby_state": READY, "prepare": None, "_checkpoint": None,
        "_stop": None, "_bring_to_the_end": (Lsn(5), 2), "_promote": None,
    }  # fmt: skip

    def of(name: str, is_awaited: bool) -> Callable[..., object]:
        def done(*_: object, **__: object) -> object:
            if name == failing:
                raise error()
            return results[name]

        async def awaited(*_: object, **__: object) -> object:
            return done()

        return awaited if is_awaited else done

    for name in results:
        is_awaited = name in ("_flush_lsn", "_standby_state", "_checkpoint", "_promote")
        monkeypatch.setattr(switchover, name, of(name, is_awaited))


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
    stub(monkeypatch, failing, KeyboardInterrupt)
    said: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        switch_over(SETTINGS, say=said.append)
    assert wanted in said[-1] and unwanted not in said[-1], said


@pytest.mark.parametrize(
    ("failing", "wanted"),
    [("_bring_to_the_end", "Mend this and run `walkeeper settle"), ("_promote", "leave the old")],
)
def test_an_error_names_the_way_on_that_fits(
    failing: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the promotion it offered to start the old primary again."""
    stub(monkeypatch, failing, lambda: Refused("it failed"))
    with pytest.raises(Refused, match=f"^it failed. .*{wanted}") as refused:
        switch_over(SETTINGS, say=lambda _: None)
    assert ("--resume" in str(refused.value)) is (failing == "_bring_to_the_end")


@pytest.mark.parametrize(
    ("failing", "wanted"),
    [("_flush_lsn", "^--primary: refused. No .* If the primary is stopped"),
     ("_standby_state", "^--standby: refused. The primary works on")],
)  # fmt: skip
def test_a_server_without_an_answer_is_named_by_its_option(
    failing: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby that was down was "the primary"; a second run did not say how to finish."""
    stub(monkeypatch, failing, lambda: NotConnected("refused"))
    with pytest.raises(Refused, match=wanted):
        switch_over(SETTINGS, say=lambda _: None)


def test_a_standby_that_replays_nothing_is_refused() -> None:
    """The primary was stopped, and the standby did not replay its last WAL."""
    assert reason_against(READY, Lsn(5)) is None
    reason = reason_against(replace(READY, held_back="its replay is paused"), Lsn(5))
    assert reason == "the standby replays nothing for now: its replay is paused"
