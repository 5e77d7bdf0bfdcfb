"""`walkeeper up --http --http-token`: a link with the token, for a person at a terminal alone."""

from __future__ import annotations

import json

import pytest

from walkeeper_lab.live_status import LiveStatus
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
