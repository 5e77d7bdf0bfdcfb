"""The drill's incidents name reasons, alerts and runbooks that exist; its page shows each fault."""

from __future__ import annotations

import re

import pytest

from tests.house.monitoring.alerts import ALERTS
from tests.proof.drill.all_incidents import INCIDENTS, NOT_DRILLED, alert_faults
from tests.proof.drill.drill_page import page
from tests.proof.drill.incident import Incident
from tests.proof.drill.incident_run import Result
from tests.proof.drill.page_reading import read_page
from tests.proof.drill.views import Sight, own_time_s
from tests.support.folders import ROOT

HEADINGS = re.findall(r"^## (.+)$", (ROOT / "docs/runbooks.md").read_text(), re.MULTILINE)
CODES = {code for heading in HEADINGS for code in heading.split(", ")}
KNOWN = {alert.name for alert in ALERTS}


def alerts_of(incident: type[Incident]) -> set[str]:
    return {*incident.expected.alerts, *incident.expected.late_alerts}


@pytest.mark.parametrize("incident", INCIDENTS, ids=lambda incident: incident.name)
def test_an_incident_names_what_exists(incident: type[Incident]) -> None:
    expected = incident.expected
    assert expected.status is None or expected.status in CODES
    assert alerts_of(incident) <= KNOWN
    for pattern in (expected.check, expected.log, expected.metrics, expected.page):
        re.compile(pattern or "")
    assert incident.remedied.endswith((".", "`"))


def test_each_alert_has_an_incident_or_a_stated_reason() -> None:
    assert alert_faults(KNOWN) == []


@pytest.mark.parametrize("alert", sorted(KNOWN - NOT_DRILLED.keys()))
def test_an_alert_whose_incidents_are_gone_is_a_fault(alert: str) -> None:
    """Without this, a test of no fault passes for a rule that finds none."""
    others = [each for each in INCIDENTS if alert not in alerts_of(each)]
    assert f"{alert} has no incident" in alert_faults(KNOWN, others)


def test_a_new_alert_a_removed_one_and_a_needless_reason_are_faults() -> None:
    (drilled, *_), (excused,) = sorted(alerts_of(INCIDENTS[0])), NOT_DRILLED
    assert alert_faults(KNOWN | {"WalkeeperNew"}) == ["WalkeeperNew has no incident"]
    assert alert_faults(KNOWN - {drilled}) == [f"{drilled} is no alert"]
    assert alert_faults(KNOWN - {excused}) == [f"{excused} is no alert"]
    assert alert_faults(KNOWN, not_drilled=()) == [f"{excused} has no incident"]
    needless = alert_faults(KNOWN, not_drilled=(excused, drilled))
    assert needless == [f"{drilled} has an incident and a reason for none"]


def test_the_page_has_a_result_of_each_incident_and_each_alert() -> None:
    text = (ROOT / "docs/drill.md").read_text()
    results = read_page(text)
    assert [result.incident for result in results] == list(INCIDENTS)
    assert page(results) == text, "python -m tests.proof.drill --write"
    assert "no result yet" not in text


def test_the_page_tells_an_alert_that_fired_from_one_that_would() -> None:
    fired = Sight("alert", "WalkeeperNoQuorum", 5.0, "firing", fires_s=21.0)
    would = Sight("alert", "WalkeeperCommitsWait", 7.0, "pending")
    result = Result(INCIDENTS[0], (fired, would), 1.0, ())
    text, name = page([result]), INCIDENTS[0].name
    assert f"| `WalkeeperNoQuorum` | [{name}](#{name}) | 5 s | 21 s |" in text
    assert f"| `WalkeeperCommitsWait` | [{name}](#{name}) | 7 s | 7 s + 30s |" in text
    assert read_page(text) == [result]
    assert own_time_s("WalkeeperCommitsWait") == 30 and own_time_s("WalkeeperMemberLags") == 300


def test_there_are_31_incidents_and_the_soak_runs_them() -> None:
    assert len({incident.name for incident in INCIDENTS}) == len(INCIDENTS) >= 31
    assert "tests.proof.drill" in (ROOT / "tests/proof/soak/stages.py").read_text()


def test_the_page_shows_a_silent_view_and_a_remedy_that_did_not_help() -> None:
    silent = Sight("alert", "WalkeeperNoQuorum", None)
    told = Sight("status", "no_quorum", 2.4, "a | b")
    text = page([Result(INCIDENTS[0], (told, silent), None, ("the remedy: nothing",))])
    assert "**silent**" in text and "| 2 s |" in text and "**not**" in text
    assert "a \\| b" in text and "**Fault:** the remedy: nothing" in text
