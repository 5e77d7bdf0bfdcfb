"""Alerts of a real Prometheus on real daemons. It needs Debian's package prometheus."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests.support.cluster import Cluster
from tests.support.folders import ROOT
from tests.support.waiting import LIMIT_S, wait_until
from walkeeper_lab.local.tcp_ports import free_port

pytestmark = [pytest.mark.postgres, pytest.mark.soak]

CONFIG = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [alerts.yml]
scrape_configs:
  - job_name: walkeeper
    static_configs: [{{targets: {targets}}}]
"""


@contextlib.contextmanager
def prometheus(directory: Path, targets: list[str]) -> Iterator[str]:
    """Run a Prometheus with the shipped rules, whose times are cut to 2 s; yield its URL."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("no prometheus: apt install prometheus")
    rules = (ROOT / "docs/monitoring/alerts.yml").read_text()
    (directory / "alerts.yml").write_text(re.sub(r"for: \w+", "for: 2s", rules))
    (directory / "prometheus.yml").write_text(CONFIG.format(targets=json.dumps(targets)))
    address = f"127.0.0.1:{free_port()}"
    words = [f"--config.file={directory / 'prometheus.yml'}", f"--web.listen-address={address}"]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [program, *words, f"--storage.tsdb.path={directory / 'data'}"], stdout=log, stderr=log
        )
        try:
            yield f"http://{address}"
        finally:
            process.kill()
            process.wait()


def firing(url: str) -> set[str]:
    try:
        with urlopen(f"{url}/api/v1/alerts", timeout=10) as answer:
            found = json.load(answer)["data"]["alerts"]
    except (URLError, ConnectionError):
        return set()
    return {each["labels"]["alertname"] for each in found if each["state"] == "firing"}


def test_a_lost_quorum_fires_and_ends_its_alert(cluster: Cluster, tmp_path: Path) -> None:
    https = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    cluster.proposer.kill()
    cluster.proposer.start("--http", https[0])
    cluster.safekeepers[0].kill()
    cluster.safekeepers[0].start("--http", https[1])
    with prometheus(tmp_path, https) as url:

        def targets_up() -> bool:
            with (
                contextlib.suppress(URLError, ConnectionError),
                urlopen(
                    f"{url}/api/v1/query?query=count(walkeeper_build_info)", timeout=10
                ) as answer,
            ):
                found = json.load(answer)["data"]["result"]
                return bool(found) and found[0]["value"][1] == "2"
            return False

        wait_until(targets_up)
        for safekeeper in cluster.safekeepers[1:]:
            safekeeper.kill()
        wait_until(lambda: {"WalkeeperNoQuorum", "WalkeeperMemberAway"} <= firing(url), 2 * LIMIT_S)

        for safekeeper in cluster.safekeepers[1:]:
            safekeeper.start()
        wait_until(lambda: "WalkeeperNoQuorum" not in firing(url), 2 * LIMIT_S)
