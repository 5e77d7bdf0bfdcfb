"""Zones, spares and repairs in `status`, `check` and `members`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from click.testing import CliRunner

from tests.cli.status_documents import LEADER, asked
from tests.support.scenario_words import configuration_of
from walkeeper_admin.check.finding import Grade
from walkeeper_admin.check.status_checks import from_status
from walkeeper_admin.create import CreateSettings, _refuse_other_shape, _set
from walkeeper_admin.log_verdict import judge
from walkeeper_admin.members import members_document
from walkeeper_admin.members import table as members_table
from walkeeper_admin.status import table
from walkeeper_cli.program import cli
from walkeeper_common.errors import Refused
from walkeeper_common.quorum import MemberSet

ZONED: dict[str, Any] = {"ack_zones": 2, "zones": ["a", "b", "c"]}
SPARES: dict[str, Any] = {"spares": ["4@h4:1/zone=c", "3@h9:1"]}
REPAIR = "held back: safekeeper 3 is silent, and 2 repairs have begun in an hour"


def told(
    monkeypatch: pytest.MonkeyPatch, *numbers: int, facts: dict[str, Any], repair: str | None = None
) -> dict[str, Any]:
    """Return the document of `status` if these safekeepers answer."""
    primary = {"connected": True, "streaming": True, "sync_state": "sync", "since": None,
               "waiting": 0, "waiting_since": None, "lowered": [], "error": None,
               "repair": repair}  # fmt: skip
    return asked(dict.fromkeys(numbers, LEADER), monkeypatch, facts, extra={"primary": primary})


def test_status_says_which_zone_may_fail_now(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = told(monkeypatch, 1, 2, 3, facts=ZONED)
    assert whole["cluster"]["zone_failures"] == {"a": None, "b": None, "c": None}
    said = table(whole)
    assert "zones: a: 1; b: 2; c: 3" in said
    assert "zone that may fail now: any one of a, b, c" in said
    short = told(monkeypatch, 1, 2, facts=ZONED)
    assert "zone that may not fail now: a (no vote quorum would be left)" in table(short)
    assert "zones" not in told(monkeypatch, 1, 2, 3, facts={})["cluster"]["zone_failures"]
    assert "zone" not in table(told(monkeypatch, 1, 2, 3, facts={}))


def test_without_enough_zones_commits_hang_and_status_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = told(monkeypatch, 1, 2, facts={"ack_zones": 2, "zones": ["a", "a", "b"]})
    assert not found["cluster"]["quorum"]
    said = judge(found).text
    assert said.endswith("at least 2 zones have to acknowledge a commit, and only zone a does")


def test_check_warns_of_a_zone_and_of_a_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = ZONED | SPARES
    found = {each.check: each for each in from_status(told(monkeypatch, 1, 2, 3, 4, facts=facts))}
    assert found["zones"].grade is Grade.OK and "any one of a, b, c" in found["zones"].text
    assert found["spares"].grade is Grade.WARNING and "spare 3 does not" in found["spares"].text
    late = told(monkeypatch, 1, 2, 4, facts=facts, repair=REPAIR)
    found = {each.check: each for each in from_status(late)}
    assert found["zones"].grade is Grade.WARNING
    assert found["repair"].grade is Grade.WARNING and found["repair"].text == REPAIR


def test_status_asks_the_spares_and_shows_the_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    found = told(monkeypatch, 1, 2, 4, facts=ZONED | SPARES, repair=REPAIR)
    assert found["spares"] == [
        {"id": 4, "address": "h4:1", "zone": "c", "reachable": True},
        {"id": 3, "address": "h9:1", "zone": None, "reachable": False},
    ]
    assert found["cluster"]["repair"] == REPAIR and "repair" not in found["cluster"]["primary"]
    said = table(found)
    assert "spares: 4 at h4:1 in c, 3 at h9:1 (does not answer)" in said
    assert f"repair: {REPAIR}" in said


def test_members_explains_both_rules_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    found = told(monkeypatch, 1, 2, 3, facts=ZONED)
    shown = members_document(found["cluster"], found["safekeepers"])
    assert shown["sets"][0]["zones"] == ["a", "b", "c"]
    said = members_table(shown)
    assert (
        "1, 2, 3: 2, from at least 2 zones, acknowledge a commit, 2 elect, or all members outside "
        "any one zone"
    ) in said
    assert [line.split()[2] for line in said.splitlines()[:4]] == ["zone", "a", "b", "c"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("members", "set-zone", "a"), "is not ID=ZONE"),
        (("members", "set-zone", "1=a/b"), "is no zone"),
        (("members", "add", "4@h4:1/zone=", "5@h5:1"), "is no zone"),
        (("create", "--dsn", "host=h", "--zones", "1=a,2"), "is not ID=ZONE"),
    ],
)
def test_a_zone_that_is_none_is_refused(words: Sequence[str], text: str) -> None:
    done = CliRunner().invoke(cli, [*words, "--safekeepers", "h1:1,h2:1,h3:1"])
    assert done.exit_code == 2 and text in done.output, done.output


def test_a_log_is_created_with_zones_or_not_at_all() -> None:
    def made(zones: dict[int, str], **rule: Any) -> MemberSet:
        settings = CreateSettings((("h", 1), ("h", 2), ("h", 3)), "", zones=zones, **rule)
        return _set(settings, ("1#aa", "2#bb", "3#cc"), 2)

    abc = {1: "a", 2: "b", 3: "c"}
    assert made(abc, ack_zones=2) == MemberSet(("1#aa", "2#bb", "3#cc"), 2, 2, ("a", "b", "c"))
    assert made({}) == MemberSet(("1#aa", "2#bb", "3#cc"), 2)
    for zones, text in (
        (abc | {4: "d"}, "--zones names safekeeper 4"),
        ({1: "a", 2: "b"}, "need a zone of safekeeper 3"),
        ({1: "a", 2: "b", 3: "b"}, "with the loss of zone a no ack quorum would be left"),
    ):
        with pytest.raises(Refused, match=text):
            made(zones, ack_zones=2)
    assert made({1: "a", 2: "b", 3: "b"}, ack_zones=2, allow_zone_stop=True).ack_zones == 2


def test_a_log_with_another_ack_quorum_is_refused_with_the_command_that_changes_it() -> None:
    """The message said that an ack quorum is fixed."""
    wanted = CreateSettings((("h", 1), ("h", 2), ("h", 3)), "", ack_quorum=3, if_not_exists=True)
    with pytest.raises(Refused) as refused:
        _refuse_other_shape(wanted, configuration_of(3), {1, 2, 3})
    assert "exists with ack quorum 2, not 3" in str(refused.value)
    assert "`walkeeper members set-ack-quorum 3`" in str(refused.value)
