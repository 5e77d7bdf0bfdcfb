"""docs/drill.md: the results of a drill as tables. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tests.house.monitoring.alerts import ALERTS
from tests.proof.drill.all_incidents import NOT_DRILLED
from tests.proof.drill.incident_run import Result
from tests.proof.drill.views import ALERT, Sight
from walkeeper_common.shell.process.version import program_version

HEAD = """\
# The drill

`python -m tests.proof.drill --write`, as root, has written this page. The drill causes each
incident on real processes: three safekeepers, a proposer, a primary, a standby and an archive. It
asks each view of an operator until the view reports the incident. Then it runs the printed remedy,
and looks for each acknowledged row.

| view | what it is |
|---|---|
| `status` | the reasons of `walkeeper status` |
| `--check` | the exit code of `walkeeper status --check` |
| `check` | a line of `walkeeper check` |
| `log` | the log of a daemon |
| `metrics`, `page`, `alert` | `/metrics`, the web page of `--http`, and an alert of Prometheus |

The seconds are from the fault to the first answer that reports it, and in the last column from the
remedy until all is well. The machine had other work, so read them as an upper bound. For an alert
they end when its expression holds (`pending`). The alert fires after its own time, which follows
the `+` and is that of [alerts.yml](monitoring/alerts.yml). Prometheus itself evaluates the rules,
and scrapes each second. [Alerts](#alerts) has all of them.

An empty cell means that the view has nothing to report, by design:

* A second proposer ends by itself, and has changed nothing.
* A standby that lags by some MB is normal. `check` and the alert begin at 1 GB.
* A slow disk delays no commit while the others are a quorum, so `--check` is 0.
* No commit depends on a clock. During a rolling upgrade `--check` has to be 0.
* A branch that nobody acknowledged is the standby's matter. Ask `check` before a promotion.
* `check` sees the certificates of safekeepers if it has a `--tls` file itself.
* One of two proposers that depose each other leads at any time. The log of the other says why.

"""
ALERTS_HEAD = """\
## Alerts

The seconds begin with the fault. If the last column has seconds alone, the drill has waited until
the alert fired (`--fire`). Else it has the time until the expression holds, and the alert's own.

| alert | incident | its expression holds after | it fires after |
|---|---|---|---|
"""
ANSWERS = "## Answers\n"
PRINTED = "The printed remedy:"
DIRECTORY = re.compile(r"/\S*?walkeeper_(?:drill|cluster)_\w+")
VIEWS = ("status", "--check", "check", "log", "metrics", "page", ALERT)


def page(results: Sequence[Result], missing: Sequence[str] = ()) -> str:
    """Return the page. `missing` are the incidents without a result."""
    lines = ["| incident | commits | " + " | ".join(f"`{view}`" for view in VIEWS)]
    lines[0] += " | well again |"
    lines.append("|---|---|" + "---|" * (len(VIEWS) + 1))
    lines += [_row(result) for result in results]
    if missing:
        lines += ["", f"No result yet: {', '.join(missing)}."]
    lines += ["", *ALERTS_HEAD.splitlines(), *_alert_rows(results), "", *ANSWERS.splitlines(), ""]
    for result in results:
        lines += _section(result)
    return HEAD + "\n".join(lines).rstrip() + "\n"


def _row(result: Result) -> str:
    seen = {each.view: each for each in reversed(result.sights)}  # the first alert of several
    cells = [_cell(seen.get(view)) for view in VIEWS[:-1]]
    cells.append(_alert_cell(seen.get(VIEWS[-1])))
    well = "**not**" if result.well_after_s is None else f"{result.well_after_s:.0f} s"
    incident = result.incident
    name = f"[{incident.name}](#{_anchor(incident.name)})"
    return f"| {name} | {incident.commits.value} | {' | '.join(cells)} | {well} |"


def _cell(sight: Sight | None) -> str:
    if sight is None:
        return ""
    return "**silent**" if sight.after_s is None else f"{sight.after_s:.0f} s"


def _alert_cell(sight: Sight | None) -> str:
    """Return the time until the expression holds, and the rule's own time until it fires."""
    after = next((each.after for each in ALERTS if sight and each.name == sight.wanted), None)
    return f"{_cell(sight)} + {after}" if after and sight and sight.text else _cell(sight)


def _alert_rows(results: Sequence[Result]) -> list[str]:
    """Return a row for each alert: the incident that fired it, else one that caused it."""
    rows = []
    for alert in ALERTS:
        seen = [(r, s) for r in results for s in r.sights if s.view == ALERT]
        causes = [(r, s) for r, s in seen if s.wanted == alert.name and s.after_s is not None]
        causes.sort(key=lambda cause: cause[1].fires_s is None)
        if not causes:
            why = NOT_DRILLED.get(alert.name)
            shown = f"none: {why}. promtool fires it with made series" if why else "no result yet"
            rows.append(f"| `{alert.name}` | {shown} | | |")
            continue
        result, sight = causes[0]
        fires = f"{sight.after_s:.0f} s + {alert.after}"
        if sight.fires_s is not None:
            fires = f"{sight.fires_s:.0f} s"
        name = result.incident.name
        rows.append(f"| `{alert.name}` | [{name}](#{name}) | {sight.after_s:.0f} s | {fires} |")
    return rows


def _printed_remedy(result: Result) -> str | None:
    """Return the remedy that a view has printed, as it stands in the view's answer."""
    return next((each.remedy for each in result.sights if each.remedy), None)


def _section(result: Result) -> list[str]:
    incident = result.incident
    lines = [f"### {incident.name}", "", f"{incident.about} Remedy: {incident.remedied}", ""]
    lines += ["| view | answer |", "|---|---|"]
    for sight in result.sights:
        lines.append(f"| `{sight.view}` `{_escaped(sight.wanted)}` | {_escaped(sight.text)} |")
    if (printed := _printed_remedy(result)) is not None:
        lines += ["", PRINTED, "", "```text", " ".join(printed.split()), "```"]
    lines += [f"* **Fault:** {_escaped(fault)}" for fault in result.faults]
    return [*lines, ""]


def _anchor(name: str) -> str:
    return name.replace(" ", "-")


def _escaped(text: str) -> str:
    known = DIRECTORY.sub("…", " ".join(text.split())).replace(program_version(), "NEW")
    return known.replace("|", "\\|").replace("<", "&lt;")
