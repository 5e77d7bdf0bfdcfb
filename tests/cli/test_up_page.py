"""`walkeeper up --http --http-token`: a link with the token, for a person at a terminal alone."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.cli.status_documents import DOWN, LEADER, document, line
from walkeeper_lab import up
from walkeeper_lab.live_status import LiveStatus
from walkeeper_lab.up import UpSettings, page_link

TOKEN = "0123456789abcdef/@:"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_alone_gets_the_token(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, is_terminal: bool
) -> None:
    monkeypatch.setattr(LiveStatus, "is_terminal", is_terminal)
    shown = LiveStatus()
    shown.show_secret(page_link("127.0.0.1:5480", TOKEN))
    said = capsys.readouterr().out
    assert said == ("http://walkeeper:0123456789abcdef%2F%40%3A@127.0.0.1:5480/\n" * is_terminal)
    assert "0123456789abcdef" not in json.dumps(shown.events.shown())


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_page_has_each_change_of_the_state_with_its_level(
    monkeypatch: pytest.MonkeyPatch, *, is_terminal: bool
) -> None:
    """On a terminal the page had no incident, and without one each was at the level INFO."""
    monkeypatch.setattr(LiveStatus, "is_terminal", is_terminal)
    shown, well = LiveStatus(), document(line(1), line(2), line(3))
    well["cluster"] |= {"quorum": True, "proposer": LEADER}
    for each in (well, document(line(1), DOWN, DOWN), document(line(1), DOWN, DOWN), well):
        shown.show(each)
    events = [(each["level"], str(each["text"]).split(":")[1]) for each in shown.events.shown()]
    assert events == [("INFO", " ok"), ("ERROR", " no quorum"), ("INFO", " ok")]


class Asked(Exception):
    """Carries the arguments with which `up` asks."""


def test_up_asks_the_primary_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The proposer's report is a second old: after an attach it said `async`."""

    async def gather(*words: object) -> NoReturn:
        raise Asked(*words)

    monkeypatch.setattr(up, "gather", gather)
    one = up._Up(UpSettings(str(tmp_path), "host=db1", 5454), tmp_path, LiveStatus())
    with pytest.raises(Asked) as asked:
        asyncio.run(one._watch())
    assert asked.value.args[-1] == "host=db1"


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({}, "ok: every safekeeper has what is committed; primary: walkeeper streaming as sync"),
        ({"sync_state": "async"}, "is async at the primary; primary: walkeeper streaming as async"),
        ({"streaming": False}, "hang if it is attached; primary: walkeeper not streaming as sync"),
        ({"sync_state": None}, "; primary: walkeeper streaming as hidden"),
        (
            {"connected": False, "sync_state": "absent", "error": "no proposer"},
            "to the primary: no proposer; primary: walkeeper is not connected",
        ),
        (
            {"connected": False, "sync_state": None, "error": "refused"},
            "to the primary: refused; primary: DOWN (refused)",
        ),
    ],
)
def test_the_verdict_and_the_state_of_the_primary_are_one_answer(
    facts: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = {
        "connected": True, "streaming": True, "sync_state": "sync", "since": None, "waiting": 0,
        "waiting_since": None, "lowered": [], "error": None,
    }  # fmt: skip
    well = document(line(1), line(2), line(3))
    well["cluster"] |= {"quorum": True, "proposer": LEADER, "primary": {**answer, **facts}}
    LiveStatus().show(well)
    assert capsys.readouterr().out.endswith(f"{said}\n")
