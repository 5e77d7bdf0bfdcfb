"""The judge: pg_waldump --stats over the same files, as text."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from tests.history.seeded_wal import segment_paths


def one_timeline(directory: Path, chosen: list[tuple[str, Path]], timeline: int) -> Path:
    """Make a directory in which the path's segments all carry the names of one timeline.

    pg_waldump follows no history. The page headers are not touched.
    """
    directory.mkdir(exist_ok=True)
    for name, path in chosen:
        os.symlink(path, directory / f"{timeline:08X}{name[8:]}")
    return directory


def stats_text(
    program: str, directory: Path, *, by_record: bool, environment: dict[str, str]
) -> str:
    """Return pg_waldump's output from the first segment there to the end of the log."""
    first = segment_paths(directory)[0].name
    size = segment_paths(directory)[0].stat().st_size
    number, per_log = int(first[8:16], 16), int(first[16:], 16)
    lsn = f"{number:X}/{per_log * size:X}"
    option = "--stats=record" if by_record else "--stats"
    done = subprocess.run(
        [program, option, "-p", str(directory), "-t", str(int(first[:8], 16)), "-s", lsn],
        capture_output=True, text=True, timeout=300, env=environment,
    )  # fmt: skip
    assert "WAL statistics" in done.stdout, f"{done.stdout}{done.stderr}"
    return re.sub(r"^first record is after.*\n\n?", "", done.stdout, flags=re.M)
