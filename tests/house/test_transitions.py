"""The states in docs/architecture.md are those of the shipping cores."""

from __future__ import annotations

from tests.house import transitions


def test_the_page_has_the_states_of_the_cores() -> None:
    text = transitions.PAGE.read_text()
    found = transitions.recorded()
    assert transitions.with_tables(text, found) == text, "python -m tests.house.transitions"
    for core, pairs in found.items():
        shown = (transitions.IMAGES / f"{core}-states.svg").read_text()
        for before, after in pairs:
            assert f"{before}&#45;&gt;{after}" in shown, (
                f"{core}: python -m tests.house.transitions"
            )
