"""The drill's incidents name reasons, alerts and runbooks that exist; its page shows each fault."""

from __future__ import annotations

import re

import pytest

from tests.house.monitoring.alerts import ALERTS
from tests.proof.drill.all_incidents import INCIDENTS
from tests.proof.drill.drill_page import page
from tests.proof.drill.incident import Incident
from tests.proof.drill.incident_run import Result
from tests.proof.drill.views import Sight
from tests.support.folders import ROOT

HEADINGS = re.findall(r"^## (.+)$", (ROOT / "docs/runbooks.md").read_text(), re.MULTILINE)
CODES = {code for heading in HEADINGS for code in heading.split(", ")}


@pytest.mark.parametrize("incident", INCIDENTS, ids=lambda incident: incident.name)
def test_an_incident_names_what_exists(incident: type[Incident]) -> None:
    expected = incident.expected
    assert expected.status is None or expected.status in CODES
    assert expected.alert is None or expected.alert in {alert.name for alert in ALERTS}
    for pattern in (expected.check, expected.log, expected.metrics, expected.page):
        re.compile(pattern or "")
    assert incident.remedied.endswith((".", "`"))


def test_there_are_25_incidents_and_the_soak_runs_them() -> None:
    assert len({incident.name for incident in INCIDENTS}) == len(INCIDENTS) >= 25
    assert "tests.proof.drill" in (ROOT / "tests/proof/soak/stages.py").read_text()


def test_the_page_shows_a_silent_view_and_a_remedy_that_did_not_help() -> None:
    silent = Sight("alert", "WalkeeperNoQuorum", None)
    told = Sight("status", "no_quorum", 2.4, "a | b")
    text = page([Result(INCIDENTS[0], (told, silent), None, ("the remedy: nothing",))])
    assert "**silent**" in text and "| 2 s |" in text and "**not**" in text
    assert "a \\| b" in text and "**Fault:** the remedy: nothing" in text
