"""The results that docs/drill.md has, read back from its text. Pure.

    read_page(text) -> the results       page(read_page(text)) is that text again

A run of some incidents writes the page anew. The others keep the figures that the page has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from tests.proof.drill.all_incidents import INCIDENTS
from tests.proof.drill.drill_page import ALERTS_HEAD, ANSWERS, PRINTED, VIEWS
from tests.proof.drill.incident_run import Result
from tests.proof.drill.views import ALERT, Sight

ROW = re.compile(r"^\| \[(\w+)\]\(#\w+\) \| .*$", re.MULTILINE)
SIGHT = re.compile(r"^\| `([a-z-]+)` `(.*?)` \| (.*) \|$", re.MULTILINE)
REMEDY = re.compile(re.escape(PRINTED) + r"\n\n```text\n(.*)\n```")
FIRED = re.compile(
    r"^\| `(\w+)` \| \[(\w+)\]\(#\w+\) \| (\d+) s \| (?:(\d+) s|.*) \|$", re.MULTILINE
)
SECONDS = re.compile(r"(\d+) s")


def read_page(text: str) -> list[Result]:
    """Return the results of a page. A result with a fault is left out: it is to be repeated."""
    table, _, answers = text.partition(ANSWERS)
    alerts = table.partition(ALERTS_HEAD)[2]
    fired = {found[:2]: found[2:] for found in FIRED.findall(alerts)}
    rows = {found[1]: found[0] for found in ROW.finditer(table.partition(ALERTS_HEAD)[0])}
    sections = dict(re.findall(r"^### (\w+)\n(.*?)(?=^### |\Z)", answers, re.MULTILINE | re.DOTALL))
    known = {each.name: each for each in INCIDENTS}
    found = []
    for name in rows.keys() & sections.keys() & known.keys():
        result = _result(Result(known[name], (), None, ()), rows[name], sections[name], fired)
        if result is not None:
            found.append(result)
    return sorted(found, key=lambda result: INCIDENTS.index(result.incident))


def _result(
    empty: Result, row: str, section: str, fired: Mapping[tuple[str, str], tuple[str, str]]
) -> Result | None:
    """Return the result of one row and one section, or None if a figure is missing."""
    cells = [_seconds(cell) for cell in _cells(row)[2:]]
    times = dict(zip(VIEWS, cells, strict=False))
    printed = REMEDY.search(section)
    sights: list[Sight] = []
    for view, wanted, text in SIGHT.findall(section):
        after_s, fires_s = times.get(view), None
        wanted = _unescaped(wanted)
        if view == ALERT:
            shown = fired.get((wanted, empty.incident.name), ("", ""))
            after_s = float(shown[0]) if shown[0] else after_s
            fires_s = float(shown[1]) if shown[1] else None
        if after_s is None:
            return None
        remedy = printed.group(1) if printed and not sights else ""
        sights.append(Sight(view, wanted, after_s, _unescaped(text), remedy, fires_s))
    well_s = cells[-1]
    return None if well_s is None else replace(empty, sights=tuple(sights), well_after_s=well_s)


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("|").split("|")]


def _seconds(cell: str) -> float | None:
    found = SECONDS.match(cell)
    return float(found.group(1)) if found else None


def _unescaped(text: str) -> str:
    return text.replace("\\|", "|").replace("&lt;", "<")
