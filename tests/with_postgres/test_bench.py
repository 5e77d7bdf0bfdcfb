"""`walkeeper bench`, each as short as can be: every side is measured, and nothing stays behind."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.cluster import walkeeper
from tests.support.postgres_server import make_directory

pytestmark = pytest.mark.postgres
SIDES = {"no replication", "pg_receivewal", "walkeeper"}
PATH_SIDES = SIDES | {"walkeeper, slow path"}
TLS_SIDES = {"walkeeper", "walkeeper, TLS", "pg_receivewal", "pg_receivewal, TLS"}
ARCHIVE_SIDES = {"no archive", "archive", "store fails"}
PUT_SIDES = {"cp and fsync", "walkeeper", "walkeeper, zstd"}
SHORT = {
    "commit": (("--seconds", "1"), SIDES),
    "bulk": (("--megabytes", "5"), SIDES),
    "commit --slow-path --pin": (("--seconds", "1"), PATH_SIDES),
    "bulk --tls": (("--megabytes", "5"), TLS_SIDES),
    "failover": ((), SIDES),
    "failover --round-trip 1ms": ((), SIDES),
    "archive": (("--seconds", "1"), ARCHIVE_SIDES),
    "archive-put": (("--segments", "4"), PUT_SIDES),
}


LONG = (
    "commit",
    "commit --slow-path --pin",
    "bulk --tls",
    "failover",
    "failover --round-trip 1ms",
    "archive",
)


@pytest.mark.parametrize(
    "what", [pytest.param(w, marks=[pytest.mark.soak] if w in LONG else []) for w in SHORT]
)
def test_every_side_is_measured_and_nothing_stays(what: str, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    flags, sides = SHORT[what]
    folder = make_directory("walkeeper_benches_")
    done = walkeeper(
        *("bench", *what.split(), "--rounds", "1", "--scale", "1", "--json", str(figures)),
        *("--dir", str(folder), *flags),
    )
    if "fdatasync does nothing" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(side in done.stdout for side in sides) and "fdatasync" in done.stdout
    measured = [f for f in json.loads(figures.read_text())["figures"] if f["values"]]
    units = [figure["unit"] for figure in measured]
    memory = sum(unit.startswith("MB, ") for unit in units)
    assert memory == (0 if what == "archive-put" else 2) < len(units)
    assert sum(unit.startswith("CPU ") for unit in units) == (6 if what.startswith("commit") else 0)
    for figure in measured:
        assert figure["values"].keys() == _sides_of(figure["unit"], sides)
    assert all(v > 0 for f in measured for values in f["values"].values() for v in values)
    words = ["pgrep", "-f", f"{folder}/walkeeper_bench_"]
    running = subprocess.run(words, capture_output=True, text=True)
    assert not running.stdout
    folder.rmdir()  # It is empty.


def _sides_of(unit: str, sides: set[str]) -> set[str]:
    """Return the sides that have this figure: those with receivers, those with a proposer, all."""
    if unit.startswith(("MB, ", "CPU ")):
        sides = sides - {"no replication"}
    return sides - {"pg_receivewal"} if unit.endswith("proposer") else sides
