"""Prometheus itself evaluates docs/monitoring/alerts.yml on the daemons of the drill.

    with Prometheus.watching(directory, {"safekeeper1": 7676, …}) as prometheus: prometheus.state(…)

An alert is `pending` once its expression holds, and fires after its own time. The drill waits for
the minutes of `for` with --fire alone.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.support.folders import ROOT
from tests.support.waiting import wait_until
from walkeeper_lab.local.tcp_ports import free_port

RULES = ROOT / "docs/monitoring/alerts.yml"
EVERY = "1s"
ASK_S = 5.0


def found_prometheus() -> str | None:
    """Return the program of Debian's package `prometheus`, or None."""
    return shutil.which("prometheus")


class Prometheus:
    """One process on loopback, with its data in the directory."""

    def __init__(self, directory: Path, ports: Mapping[str, int]) -> None:
        self._port = free_port()
        directory.mkdir()
        self._log = directory / "log"
        config = {
            "global": {"scrape_interval": EVERY, "evaluation_interval": EVERY},
            "rule_files": [str(RULES)],
            "scrape_configs": [
                {
                    "job_name": "walkeeper",
                    "static_configs": [{"targets": [f"127.0.0.1:{p}" for p in ports.values()]}],
                }
            ],
        }
        self._config = directory / "prometheus.yml"
        self._config.write_text(yaml.safe_dump(config))
        self._data = directory / "data"

    @classmethod
    @contextlib.contextmanager
    def watching(cls, directory: Path, ports: Mapping[str, int]) -> Iterator[Prometheus | None]:
        """Yield a running one, or None if the program is not installed."""
        program = found_prometheus()
        if program is None:
            yield None
            return
        made = cls(directory, ports)
        with made._log.open("wb") as log:
            process = subprocess.Popen(
                [
                    program,
                    f"--config.file={made._config}",
                    f"--storage.tsdb.path={made._data}",
                    f"--web.listen-address=127.0.0.1:{made._port}",
                    "--log.level=warn",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )  # fmt: skip
        try:
            wait_until(made._is_ready)
            yield made
        finally:
            process.kill()
            process.wait()

    def _is_ready(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(self._ask("query", query="vector(1)"))
        return False

    def state(self, alert: str) -> str | None:
        """Return `pending` or `firing`, or None while the alert's expression does not hold."""
        found = self._ask("alerts")["alerts"]
        states = {each["state"] for each in found if each["labels"]["alertname"] == alert}
        return max(states, key=("pending", "firing").index, default=None)

    def fires(self, alert: str) -> str | None:
        """Return `firing`, or None while the alert does not fire."""
        state = self.state(alert)
        return state if state == "firing" else None

    def alerts(self) -> set[str]:
        """Return the names of all alerts whose expression holds."""
        return {each["labels"]["alertname"] for each in self._ask("alerts")["alerts"]}

    def _ask(self, what: str, **arguments: str) -> Any:
        url = f"http://127.0.0.1:{self._port}/api/v1/{what}?{urllib.parse.urlencode(arguments)}"
        with urllib.request.urlopen(url, timeout=ASK_S) as answer:
            return json.load(answer)["data"]
