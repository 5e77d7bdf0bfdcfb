"""The views of an operator, asked at once until each of them shows the incident.

    seen = watch(stage, incident, limit_s)      a Sight for each view that is expected to tell

Each view has a thread of its own, so that a slow one delays no other.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tests.proof.drill.incident import Incident
from tests.support.waiting import NotInTime, wait_until
from walkeeper_admin.check.all_checks import CheckSettings, run
from walkeeper_admin.check.finding import Finding, Grade

Look = Callable[[], str | None]
LINE = 200
CHECK_PAUSE_S = 2.0


@dataclass(frozen=True, slots=True)
class Sight:
    """The first answer of a view that shows the incident. `after_s` is None if there is none."""

    view: str
    wanted: str
    after_s: float | None
    text: str = ""
    remedy: str = ""


def watch(incident: Incident, limit_s: float) -> list[Sight]:
    """Ask each view until it tells of the incident, at most so long."""
    looks = _looks(incident)
    with ThreadPoolExecutor(max(1, len(looks))) as pool:
        waiting = [pool.submit(_sight, incident, *look, limit_s) for look in looks]
        return [each.result() for each in waiting]


def _sight(incident: Incident, view: str, wanted: str, look: Look, limit_s: float) -> Sight:
    try:
        text = wait_until(look, limit_s)
    except NotInTime:
        return Sight(view, wanted, None)
    assert text is not None, f"{view=}"
    said, _, remedy = text.partition("\t")
    return Sight(view, wanted, time.monotonic() - incident.stage.started_s, said[:LINE], remedy)


def _looks(incident: Incident) -> list[tuple[str, str, Look]]:
    expected, stage = incident.expected, incident.stage

    def reason() -> str | None:
        for each in stage.status()["reasons"]:
            if each["code"] == expected.status:
                return f"{each['text']}\t{each['remedy']}"
        return None

    def exit_code() -> str | None:
        found = stage.verdict()
        return found["text"] if found["exit_code"] == expected.exit_code else None

    def check() -> str | None:
        time.sleep(CHECK_PAUSE_S)  # it costs more than the other views
        bad = [each for each in findings(incident) if each.grade is not Grade.OK]
        told = [each for each in bad if re.search(expected.check or "", _line(each))]
        return f"{_line(told[0])}\t{told[0].remedy}" if told else None

    def alert() -> str | None:
        assert stage.prometheus is not None and expected.alert is not None
        return stage.prometheus.state(expected.alert)

    def text_of(source: Callable[[], str], pattern: str | None) -> Look:
        def look() -> str | None:
            found = re.search(f"^.*({pattern}).*$", source(), re.MULTILINE)
            return _around(found) if found else None

        return look

    asked = {
        "status": (expected.status, reason),
        "--check": (str(expected.exit_code) if expected.exit_code else None, exit_code),
        "check": (expected.check, check),
        "log": (expected.log, text_of(stage.logs, expected.log)),
        "metrics": (expected.metrics, text_of(lambda: stage.asked("/metrics"), expected.metrics)),
        "page": (expected.page, text_of(lambda: stage.asked("/status"), expected.page)),
        "alert": (expected.alert if stage.prometheus else None, alert),
    }
    return [(view, wanted, look) for view, (wanted, look) in asked.items() if wanted]


def findings(incident: Incident) -> list[Finding]:
    """Return the lines of `walkeeper check`."""
    stage = incident.stage
    options: dict[str, Any] = incident.check_arguments()
    return list(run(CheckSettings(stage.pairs(), stage.name, **options)))


def _line(finding: Finding) -> str:
    return f"{finding.grade.name} {finding.check}: {finding.text}"


def _around(found: re.Match[str]) -> str:
    """Return the matched line's beginning, or the match itself if it is deep in a document."""
    is_near = found.end(1) - found.start(0) <= LINE
    return (found.group(0) if is_near else found.group(1))[:LINE]
