"""From outside a real safekeeper, by strace: no acknowledgement leaves before its fdatasync."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, lsn_of
from tests.support.journal import Journal
from tests.support.postgres_server import PostgresServer
from tests.support.traces import (
    TRACED,
    acknowledged_too_early,
    with_syncs_behind_the_acknowledgements,
)
from tests.support.waiting import LIMIT_S

SEGMENT_BYTES = 1 << 20
BULK = "INSERT INTO journal SELECT -i, repeat('y', 500) FROM generate_series(1, 5000) i"

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
]


@contextlib.contextmanager
def traced(pid: int, output: Path) -> Iterator[None]:
    """Attach strace to all threads of that process within the block."""
    options = ["-f", "-y", "-xx", "-s", "256", "-e", f"trace={TRACED}", "-o", str(output)]
    strace = subprocess.Popen(
        ["strace", *options, "-p", str(pid)], stderr=subprocess.PIPE, text=True
    )
    try:
        assert strace.stderr is not None
        attached = strace.stderr.readline()
        assert "attached" in attached, attached
        yield
    finally:
        strace.send_signal(signal.SIGINT)
        strace.communicate(timeout=LIMIT_S)


def has_enough(lines: list[str], durable_lsn: int) -> bool:
    """Return True if the trace would show a safekeeper that acknowledges too early."""
    doctored = with_syncs_behind_the_acknowledgements(lines)
    found = acknowledged_too_early(doctored, SEGMENT_BYTES, durable_lsn)
    return found.acknowledgements > 100 and found.syncs > 50 and len(found.early) > 50


def test_no_append_response_leaves_before_the_fdatasync_that_covers_it(
    cluster: Cluster, primary: PostgresServer, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    load = Journal(primary)
    cluster.wait_all_equal()
    with traced(cluster.safekeepers[0].pid, trace):
        durable = lsn_of(cluster.flush_lsns()[1])
        with load as journal:
            journal.wait_for_more(500)
            primary.sql(BULK)  # over several segments
            # A slow safekeeper acknowledges the WAL of many commits at once.
            while not has_enough(trace.read_text(errors="replace").splitlines(), durable):
                journal.wait_for_more(100)
    lines = trace.read_text(errors="replace").splitlines()
    found = acknowledged_too_early(lines, SEGMENT_BYTES, durable)
    assert found.acknowledgements > 100, found
    assert found.syncs > 50, found
    assert not found.early, f"{found.early[:3]} of {found.acknowledgements}"

    doctored = with_syncs_behind_the_acknowledgements(lines)
    caught = acknowledged_too_early(doctored, SEGMENT_BYTES, durable)
    assert caught.acknowledgements == found.acknowledgements
    assert len(caught.early) > 50, f"{len(caught.early)} of {caught.acknowledgements}"
