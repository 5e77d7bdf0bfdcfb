"""`walkeeper up --http --http-token`: a link with the token, for a person at a terminal alone."""

from __future__ import annotations

import json

import pytest

from tests.cli.status_documents import DOWN, document, line
from walkeeper_lab.live_status import LiveStatus, PrimaryState
from walkeeper_lab.up import page_link

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
    well["cluster"] |= {"quorum": True, "proposer": {"name": "walkeeper"}}
    for each in (well, document(line(1), DOWN, DOWN), document(line(1), DOWN, DOWN), well):
        shown.show(each, PrimaryState("walkeeper streaming as sync"))
    events = [(each["level"], str(each["text"]).split(":")[1]) for each in shown.events.shown()]
    assert events == [("INFO", " ok"), ("ERROR", " no quorum"), ("INFO", " ok")]
