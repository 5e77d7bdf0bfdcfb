"""Audit lines name the peer, cannot be forged, and stay few under a crowd of refusals."""

from __future__ import annotations

import json

from walkeeper_common.access.identity import ANYBODY, Identity, Role
from walkeeper_common.shell.log_lines.audit import REFUSALS_MAX, Audit

OPERATOR = Identity("ops", frozenset((Role.ADMIN,)), None, None, "certificate")


class Lines:
    """The lines that were written, and a clock that the test turns."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.lines, self.at_s = list[str](), 0.0
        self.audit = Audit(as_json=as_json, write=self.lines.append, now_s=lambda: self.at_s)


def test_a_login_and_a_change_name_the_peer() -> None:
    found = Lines()
    found.audit.login(OPERATOR, "10.0.0.7:1", cluster="main")
    found.audit.change("create", OPERATOR, "10.0.0.7:1", cluster="main")
    assert found.lines == [
        "audit: event=login roles=admin cluster=main identity=ops how=certificate "
        "address=10.0.0.7:1",
        "audit: event=change act=create cluster=main identity=ops how=certificate "
        "address=10.0.0.7:1",
    ]


def test_a_name_forges_neither_a_line_nor_a_field() -> None:
    hostile = 'x identity=admin\n2026-11-25 FATAL: "no"\x1b[2J\u202e'
    found, as_json = Lines(), Lines(as_json=True)
    for each in (found, as_json):
        each.audit.change("drop-slot", ANYBODY, "[::1]:9", slot=hostile)
    (line,), (other,) = found.lines, as_json.lines
    assert line.isprintable() and line.isascii() and line.count(" identity=") == 2
    assert f"slot={json.dumps(hostile)} identity=anybody" in line
    assert other.isascii() and other.isprintable()
    assert json.loads(other.removeprefix("audit: "))["slot"] == hostile


def test_a_crowd_of_refusals_costs_few_lines_and_is_counted() -> None:
    """45,000 hostile messages wrote 2.9 MB before; now ten lines a minute for each reason."""
    found = Lines()
    for _ in range(45_000):
        found.audit.refusal("role", ANYBODY, "127.0.0.1:5")
    found.audit.refusal("cluster", ANYBODY, "127.0.0.1:5")
    assert len(found.lines) == REFUSALS_MAX + 1
    assert found.audit.refusals == {"role": 45_000, "cluster": 1}
    found.at_s = 60.0
    found.audit.refusal("role", ANYBODY, "127.0.0.1:5")
    assert f"held_back={45_000 - REFUSALS_MAX}" in found.lines[-1]


def test_reasons_are_few_whatever_comes() -> None:
    found = Lines()
    for number in range(1000):
        found.audit.refusal(f"reason{number}", ANYBODY, "127.0.0.1:5")
    assert len(found.audit.refusals) <= 65 and found.audit.refusals.total() == 1000
