"""docs/monitoring/alerts.yml: one rule for each fault that a figure shows, with its runbook.

Each alert has the series of one fault, so that promtool can fire it (test_monitoring.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import yaml

from tests.house.monitoring.metrics_page import METRICS
from tests.support.folders import ROOT

RUNBOOKS = "docs/runbooks.md"
NAME = re.compile(r"\bwalkeeper_[a-z_]+")
SUFFIX = re.compile(r"_(?:bucket|sum|count)$")
HEAD = "# Generated from the metrics' definitions by tests/house/test_monitoring.py.\n"


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule. `fault` has the series of a fault in promtool's notation; they last for an hour.

    `harmless` has series that look like the fault, and fire nothing.
    """

    name: str
    expr: str
    after: str
    severity: str
    summary: str
    runbook: str
    fault: Mapping[str, str]
    harmless: Mapping[str, str] | None = None


SK1 = '{cluster="main",safekeeper="1"}'
MAIN = '{cluster="main"}'
P99 = "histogram_quantile(0.99, sum by (cluster{more}, le) (rate({name}_bucket[5m])))"

LED = "walkeeper_proposer_leading or walkeeper_safekeeper_proposer_connected"


def _slow(name: str, labels: str) -> dict[str, str]:
    """Return series of which every duration is beyond a second."""
    return {
        f'{name}_bucket{{{labels},le="1.0"}}': "0+0x60",
        f'{name}_bucket{{{labels},le="2.5"}}': "0+60x60",
        f'{name}_bucket{{{labels},le="+Inf"}}': "0+60x60",
    }


ALERTS = (
    Alert(
        "WalkeeperNoQuorum",
        "max by (cluster) (walkeeper_proposer_quorum) == 0",
        "15s",
        "critical",
        "Commits of {{ $labels.cluster }} hang: too few safekeepers are attached.",
        "no_quorum",
        {"walkeeper_proposer_quorum" + MAIN: "0x60"},
    ),
    Alert(
        "WalkeeperNoProposer",
        f"(max by (cluster) ({LED}) == 0 or absent({LED}))"
        " unless on (cluster) avg by (cluster) (walkeeper_safekeeper_closed) > 0.5",
        "1m",
        "critical",
        "No proposer leads: commits of an attached primary hang.",
        "no_proposer",
        {
            'walkeeper_proposer_leading{cluster="other"}': "1x60",
            "walkeeper_safekeeper_proposer_connected" + SK1: "0x60",
            "walkeeper_safekeeper_closed" + SK1: "0x60",
        },
        {
            "walkeeper_safekeeper_proposer_connected" + SK1: "0x60",
            "walkeeper_safekeeper_closed" + SK1: "1x60",
        },
    ),
    Alert(
        "WalkeeperNotStreaming",
        "max by (cluster) (walkeeper_proposer_streaming) == 0",
        "1m",
        "critical",
        "The primary of {{ $labels.cluster }} sends no WAL to its proposer.",
        "not_streaming",
        {"walkeeper_proposer_streaming" + MAIN: "0x60"},
    ),
    Alert(
        "WalkeeperCommitsWait",
        "max by (cluster) (walkeeper_proposer_commits_waiting) > 0",
        "30s",
        "critical",
        "Commits of {{ $labels.cluster }} that wait for a standby: {{ $value }}.",
        "commits_wait",
        {"walkeeper_proposer_commits_waiting" + MAIN: "3x60"},
    ),
    Alert(
        "WalkeeperWindowFull",
        "max by (cluster) (walkeeper_proposer_paused) == 1",
        "1m",
        "critical",
        "The proposer of {{ $labels.cluster }} reads no WAL until a quorum has what it holds.",
        "commits_wait",
        {"walkeeper_proposer_paused" + MAIN: "1x60"},
    ),
    Alert(
        "WalkeeperUnprotected",
        "max by (cluster) (walkeeper_proposer_synchronous) == 0",
        "1m",
        "warning",
        "Commits of {{ $labels.cluster }} return without the quorum.",
        "unprotected",
        {"walkeeper_proposer_synchronous" + MAIN: "0x60"},
    ),
    Alert(
        "WalkeeperLowered",
        "max by (cluster) (walkeeper_proposer_lowered_settings) > 0",
        "5m",
        "warning",
        "Some commits of {{ $labels.cluster }} wait for nobody: synchronous_commit is lowered.",
        "lowered",
        {"walkeeper_proposer_lowered_settings" + MAIN: "1x60"},
    ),
    Alert(
        "WalkeeperTermsGrow",
        "max by (cluster) (changes(walkeeper_safekeeper_term[15m])) > 5",
        "1m",
        "warning",
        "Proposers of {{ $labels.cluster }} depose each other.",
        "no_proposer",
        {"walkeeper_safekeeper_term" + SK1: "1+1x60"},
    ),
    Alert(
        "WalkeeperMemberAway",
        "max by (cluster, safekeeper) (walkeeper_member_attached) == 0",
        "5m",
        "warning",
        "Safekeeper {{ $labels.safekeeper }} of {{ $labels.cluster }} is not attached.",
        "not_heard",
        {'walkeeper_member_attached{cluster="main",safekeeper="10.0.0.1:5454"}': "0x60"},
    ),
    Alert(
        "WalkeeperMemberLags",
        "max by (cluster, safekeeper) (walkeeper_member_lag_bytes) > 67108864",
        "5m",
        "warning",
        "Safekeeper {{ $labels.safekeeper }} of {{ $labels.cluster }} lags by {{ $value }} bytes.",
        "lagging",
        {'walkeeper_member_lag_bytes{cluster="main",safekeeper="10.0.0.1:5454"}': "99999999x60"},
    ),
    Alert(
        "WalkeeperDiskFailed",
        "max by (cluster, safekeeper) (walkeeper_safekeeper_failed) == 1"
        " or max by (cluster, safekeeper) (walkeeper_safekeeper_broken) == 1",
        "0s",
        "critical",
        "Safekeeper {{ $labels.safekeeper }} acknowledges nothing for {{ $labels.cluster }}.",
        "failed",
        {"walkeeper_safekeeper_failed" + SK1: "1x60"},
    ),
    Alert(
        "WalkeeperDamagedWal",
        "max by (cluster, safekeeper) (walkeeper_safekeeper_damaged) == 1",
        "0s",
        "warning",
        "WAL of {{ $labels.cluster }} on the disk of safekeeper {{ $labels.safekeeper }} is bad.",
        "damaged",
        {"walkeeper_safekeeper_damaged" + SK1: "1x60"},
    ),
    Alert(
        "WalkeeperCopiesDiffer",
        "max by (cluster, safekeeper) (walkeeper_safekeeper_scrub_differences) > 0",
        "0s",
        "warning",
        "Segments of {{ $labels.cluster }} differ between safekeeper {{ $labels.safekeeper }} and "
        "another copy.",
        "differing",
        {"walkeeper_safekeeper_scrub_differences" + SK1: "1x60"},
    ),
    Alert(
        "WalkeeperRefusesWal",
        "max by (cluster, safekeeper) (walkeeper_safekeeper_refusing_wal) == 1",
        "1m",
        "critical",
        "Safekeeper {{ $labels.safekeeper }} takes no WAL of {{ $labels.cluster }}.",
        "refusing",
        {"walkeeper_safekeeper_refusing_wal" + SK1: "1x60"},
    ),
    Alert(
        "WalkeeperDiskFills",
        "min by (safekeeper) (walkeeper_safekeeper_free_bytes / walkeeper_safekeeper_size_bytes)"
        " < 0.1",
        "5m",
        "warning",
        "The disk of safekeeper {{ $labels.safekeeper }} is 90 % full.",
        "refusing",
        {
            'walkeeper_safekeeper_free_bytes{safekeeper="1"}': "5x60",
            'walkeeper_safekeeper_size_bytes{safekeeper="1"}': "100x60",
        },
    ),
    Alert(
        "WalkeeperSlowDisk",
        P99.format(name="walkeeper_safekeeper_fsync_seconds", more=", safekeeper") + " > 0.1",
        "10m",
        "warning",
        "One of 100 fsyncs of safekeeper {{ $labels.safekeeper }} takes {{ $value }} s or longer.",
        "slow_disk",
        _slow("walkeeper_safekeeper_fsync_seconds", 'cluster="main",safekeeper="1"'),
    ),
    Alert(
        "WalkeeperSlowCommits",
        P99.format(name="walkeeper_proposer_commit_seconds", more="") + " > 0.5",
        "10m",
        "warning",
        "One of 100 commits of {{ $labels.cluster }} takes {{ $value }} s or longer.",
        "slow_disk",
        _slow("walkeeper_proposer_commit_seconds", 'cluster="main"'),
    ),
    Alert(
        "WalkeeperArchiveFails",
        "max by (cluster, safekeeper) (walkeeper_safekeeper_archive_failing) == 1",
        "10m",
        "warning",
        "Requests of safekeeper {{ $labels.safekeeper }} to the archive fail.",
        "archive",
        {"walkeeper_safekeeper_archive_failing" + SK1: "1x60"},
    ),
    Alert(
        "WalkeeperArchiveStill",
        "min by (cluster) (walkeeper_safekeeper_archive_still_seconds) > 900",
        "1m",
        "warning",
        "The archive of {{ $labels.cluster }} has not moved for {{ $value }} s.",
        "archive",
        {"walkeeper_safekeeper_archive_still_seconds" + SK1: "1000x60"},
    ),
    Alert(
        "WalkeeperStandbyLags",
        "max by (cluster, application_name) (walkeeper_standby_flush_lag_bytes) > 1073741824",
        "10m",
        "warning",
        "Reader {{ $labels.application_name }} of {{ $labels.cluster }} lags by {{ $value }} B.",
        "standby_lags",
        {
            'walkeeper_standby_flush_lag_bytes{cluster="main",safekeeper="1",'
            'application_name="s1"}': "2000000000x60"
        },
    ),
    Alert(
        "WalkeeperCertificateEnds",
        # A scrape that fails once must not begin the hour anew.
        "last_over_time(walkeeper_certificate_end_seconds[10m]) - time() < 14 * 86400",
        "1h",
        "warning",
        "The certificate of {{ $labels.instance }} ends in {{ $value | humanizeDuration }}.",
        "certificate_ends",
        {'walkeeper_certificate_end_seconds{instance="a"}': "86400x30 stale 86400x60"},
    ),
    Alert(
        "WalkeeperRepairFails",
        "increase(walkeeper_proposer_failed_repairs_total[15m]) > 0",
        "1m",
        "warning",
        "No spare gets into the place of a silent member of cluster {{ $labels.cluster }}.",
        "repair",
        {'walkeeper_proposer_failed_repairs_total{cluster="main"}': "0+1x60"},
    ),
    Alert(
        "WalkeeperVersionsDiffer",
        "count(count by (version) (last_over_time(walkeeper_build_info[10m]))) > 1",
        "1h",
        "info",
        "The daemons run {{ $value }} versions.",
        "versions_differ",
        {
            'walkeeper_build_info{version="1",instance="a"}': "1x90",
            'walkeeper_build_info{version="2",instance="b"}': "1x30 stale 1x60",
        },
    ),
)


def names_in(expr: str) -> set[str]:
    """Return the metrics that an expression reads."""
    return {name if name in METRICS else SUFFIX.sub("", name) for name in NAME.findall(expr)}


def alerts() -> str:
    """Return the text of the rules."""
    rules = [
        {
            "alert": alert.name,
            "expr": alert.expr,
            "for": alert.after,
            "labels": {"severity": alert.severity},
            "annotations": {
                "summary": alert.summary,
                "runbook": f"docs{_link(alert.runbook).removeprefix('..')}",
            },
        }
        for alert in ALERTS
    ]
    groups = {"groups": [{"name": "walkeeper", "rules": rules}]}
    return HEAD + yaml.safe_dump(groups, sort_keys=False, width=1000)


def alert_table() -> str:
    """Return the alerts as a section of the metrics' page."""
    lines = [
        "",
        "## Alerts",
        "",
        "[alerts.yml](../monitoring/alerts.yml) has these rules. An alert fires when its",
        "expression has held for the time of the second column. Add two scrape intervals at most.",
        "",
        "| alert | after | severity | meaning | runbook |",
        "|---|---|---|---|---|",
    ]
    for alert in ALERTS:
        meaning = re.sub(r"\{\{ \$(?:labels\.)?(\w+)(?: \| \w+)? \}\}", r"`\1`", alert.summary)
        link = f"[{alert.runbook}]({_link(alert.runbook)})"
        lines.append(f"| `{alert.name}` | {alert.after} | {alert.severity} | {meaning} | {link} |")
    return "\n".join([*lines, ""])


def _link(code: str) -> str:
    """Return the link to the section of a code, whose heading may name several codes."""
    text = (ROOT / RUNBOOKS).read_text()
    for heading in re.findall(r"^## (.+)$", text, re.MULTILINE):
        if code in heading.split(", "):
            return f"../runbooks.md#{heading.replace(',', '').replace(' ', '-')}"
    raise AssertionError(f"{RUNBOOKS} has no section {code}")


def rule_tests() -> str:
    """Return promtool's unit tests: each alert fires for its own fault, and for no harmless one."""
    tests = [_rule_test(alert, alert.fault, fires=True) for alert in ALERTS]
    quiet = ((alert, alert.harmless) for alert in ALERTS)
    tests += [_rule_test(alert, series, fires=False) for alert, series in quiet if series]
    return yaml.safe_dump({"rule_files": ["alerts.yml"], "tests": tests}, sort_keys=False)


def _rule_test(alert: Alert, series: Mapping[str, str], *, fires: bool) -> dict[str, object]:
    return {
        "interval": "1m",
        "input_series": [{"series": s, "values": v} for s, v in series.items()],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{alert.name}",alertstate="firing"}})',
                "eval_time": "80m" if alert.after == "1h" else "45m",
                "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
            }
        ],
    }
