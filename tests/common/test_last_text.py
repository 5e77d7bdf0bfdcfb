"""A failure that repeats is shown once, and again after another one or a success."""

from __future__ import annotations

from walkeeper_common.errors import Refused
from walkeeper_common.operator_text.last_text import LastText


def test_the_same_text_is_shown_once() -> None:
    last = LastText()
    shown = [text for text in ("a", "a", "b", "b", "a") if last.changes_to(text)]
    assert shown == ["a", "b", "a"]


def test_an_error_counts_by_its_text() -> None:
    last = LastText()
    assert last.changes_to(Refused("no slot is free"))
    assert not last.changes_to(Refused("no slot is free"))


def test_a_failure_after_a_success_is_shown_again() -> None:
    last = LastText()
    assert last.changes_to("no answer")
    last.clear()
    assert last.changes_to("no answer")


def test_an_empty_text_shows_nothing_at_first() -> None:
    assert not LastText().changes_to("")
