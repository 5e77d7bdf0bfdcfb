"""The remedy for damaged WAL, of one member and of several. Pure."""

from __future__ import annotations

import pytest

from tests.cli.status_documents import LEADER, asked
from walkeeper_admin.log_verdict import judge


def test_damage_of_several_members_is_no_reason_to_replace_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The remedy said of all three that the others have that WAL, and to replace each of them."""
    found = asked(dict.fromkeys((1, 2, 3), LEADER), monkeypatch)
    lines = found["safekeepers"]
    lines[2] |= {"error": "why", "trouble": "damaged", "damage": "segment 0A"}
    (alone,) = judge(found).reasons
    assert "bring the archive back" in alone.remedy and "another disk" in alone.remedy
    lines[1] |= {"error": "why", "trouble": "damaged", "damage": "segment 0A"}
    both = judge(found).reasons
    assert [each.member for each in both] == [2, 3]
    for each in both:
        assert each.remedy.startswith("replace none: "), each
        assert "keep every directory" in each.remedy and "#damaged" in each.remedy
