"""docs/drill.md: the results of a drill as tables. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tests.house.monitoring.alerts import ALERTS
from tests.proof.drill.incident_run import Result
from tests.proof.drill.views import Sight
from walkeeper_common.shell.version import program_version

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
and scrapes each second. An empty cell means that the view has nothing to report, by design:

* A second proposer ends by itself, and has changed nothing.
* A standby that lags by some MB is normal. `check` and the alert begin at 1 GB.
* A slow disk delays no commit while the others are a quorum, so `--check` is 0.
* No commit depends on a clock. During a rolling upgrade `--check` has to be 0.
* A branch that nobody acknowledged is the standby's matter. Ask `check` before a promotion.
* `check` sees the certificates of safekeepers if it has a `--tls` file itself.

"""
DIRECTORY = re.compile(r"/\S*?walkeeper_(?:drill|cluster)_\w+")
VIEWS = ("status", "--check", "check", "log", "metrics", "page", "alert")


def page(results: Sequence[Result], missing: Sequence[str] = ()) -> str:
    """Return the page. `missing` are the incidents without a result."""
    lines = ["| incident | commits | " + " | ".join(f"`{view}`" for view in VIEWS)]
    lines[0] += " | well again |"
    lines.append("|---|---|" + "---|" * (len(VIEWS) + 1))
    lines += [_row(result) for result in results]
    if missing:
        lines += ["", f"No result yet: {', '.join(missing)}."]
    lines += ["", "## Answers", ""]
    for result in results:
        lines += _section(result)
    return HEAD + "\n".join(lines).rstrip() + "\n"


def _row(result: Result) -> str:
    seen = {each.view: each for each in result.sights}
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
        lines += ["", "The printed remedy:", "", "```text", " ".join(printed.split()), "```"]
    lines += [f"* **Fault:** {_escaped(fault)}" for fault in result.faults]
    return [*lines, ""]


def _anchor(name: str) -> str:
    return name.replace(" ", "-")


def _escaped(text: str) -> str:
    known = DIRECTORY.sub("…", " ".join(text.split())).replace(program_version(), "NEW")
    return known.replace("|", "\\|").replace("<", "&lt;")
