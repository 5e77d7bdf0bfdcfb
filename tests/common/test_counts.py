"""A count in a message agrees with its words."""

from __future__ import annotations

import pytest

from walkeeper_admin.status import primary_line
from walkeeper_common.operator_text.counts import counted


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 commits wait"), (1, "1 commit waits"), (2, "2 commits wait"), (21, "21 commits wait")],
)
def test_one_thing_has_the_words_of_one(count: int, shown: str) -> None:
    assert counted(count, "commit waits", "commits wait") == shown
    primary = {
        "connected": True,
        "streaming": True,
        "sync_state": "sync",
        "since": None,
        "error": None,
    }
    line = primary_line({**primary, "waiting": count, "waiting_since": "2026-11-27T00:00:00Z"})
    assert (f", {shown} since" in line) == bool(count)
