"""The views of an operator, asked at once until each of them shows the incident.

    seen = watch(incident, limit_s)      a Sight for each view that is expected to tell

Each view has a thread of its own, so that a slow one delays no other. So has each alert.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from tests.house.monitoring.alerts import ALERTS
from tests.proof.drill.incident import Incident
from tests.support.waiting import NotInTime, wait_until
from walkeeper_admin.check.all_checks import CheckSettings, run
from walkeeper_admin.check.finding import Finding, Grade

Look = Callable[[], str | None]
LINE = 200
CHECK_PAUSE_S = 2.0
ALERT = "alert"
LATE_S = 900.0  # until the expression of a late alert holds
UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Sight:
    """The first answer of a view that shows the incident. `after_s` is None if there is none.

    `fires_s` is when an alert fired, and None if the drill did not wait for that."""

    view: str
    wanted: str
    after_s: float | None
    text: str = ""
    remedy: str = ""
    fires_s: float | None = None


def watch(incident: Incident, limit_s: float, *, fire: bool = False) -> list[Sight]:
    """Ask each view until it tells of the incident, at most so long.

    With `fire` wait until each alert fires, late ones included."""
    looks = _looks(incident)
    late = incident.expected.late_alerts if fire else ()
    alerts = dict.fromkeys(incident.expected.alerts, limit_s)
    alerts |= dict.fromkeys(late, limit_s + LATE_S)
    if incident.stage.prometheus is None:
        alerts = {}
    with ThreadPoolExecutor(max(1, len(looks) + len(alerts))) as pool:
        waiting = [pool.submit(_sight, incident, *look, limit_s) for look in looks]
        for name, until_s in alerts.items():
            waiting.append(pool.submit(_alert, incident, name, until_s, fire=fire))
        return [each.result() for each in waiting]


def _alert(incident: Incident, name: str, limit_s: float, *, fire: bool) -> Sight:
    """Return when the alert's expression holds, and with `fire` when the alert fires."""
    prometheus = incident.stage.prometheus
    assert prometheus is not None, f"{name=}"
    seen = _sight(incident, ALERT, name, lambda: prometheus.state(name), limit_s)
    if seen.after_s is None or not fire:
        return seen
    wait_s = own_time_s(name) + limit_s
    fired = _sight(incident, ALERT, name, lambda: prometheus.fires(name), wait_s)
    if fired.after_s is None:
        return fired
    return replace(seen, text=fired.text, fires_s=fired.after_s)


def own_time_s(name: str) -> float:
    """Return how long the expression of this alert holds before the alert fires."""
    after = next(each.after for each in ALERTS if each.name == name)
    return int(after[:-1]) * UNITS_S[after[-1]]


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
    }
    return [(view, wanted, look) for view, (wanted, look) in asked.items() if wanted]


def findings(incident: Incident) -> list[Finding]:
    """Return the lines of `walkeeper check`."""
    stage = incident.stage
    options: dict[str, Any] = incident.check_arguments()

    async def collected() -> list[Finding]:
        return [found async for found in run(CheckSettings(stage.pairs(), stage.name, **options))]

    return asyncio.run(collected())


def _line(finding: Finding) -> str:
    return f"{finding.grade.name} {finding.check}: {finding.text}"


def _around(found: re.Match[str]) -> str:
    """Return the matched line's beginning, or the match itself if it is deep in a document."""
    is_near = found.end(1) - found.start(0) <= LINE
    return (found.group(0) if is_near else found.group(1))[:LINE]
