"""The report of a failed test has the last lines of the daemons, and tells which have ended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.folders import ROOT

FAILING = """
import pytest
from tests.support.cluster import Cluster

class Primary:
    def dsn(self): return ""

@pytest.fixture
def cluster():
    made = Cluster(Primary())
    made.proposer.log.write_text("the reason why it ended\\n")
    yield made
    made.close()

def test_of_a_cluster(cluster):
    assert False
"""


def test_a_failed_test_has_what_its_daemons_said(tmp_path: Path) -> None:
    file = tmp_path / "failing.py"
    file.write_text(FAILING)
    words = ["-p", "tests.conftest", "-p", "no:cacheprovider", "-q", str(file)]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd=ROOT, capture_output=True, text=True
    )
    assert "1 failed" in ended.stdout, ended
    assert "proposer (ended):\nthe reason why it ended\n" in ended.stdout, ended
