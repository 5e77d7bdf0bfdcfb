"""A file of WAL that `walkeeper restore` fetches, as PostgreSQL runs it. A shell. Blocking.

    restored(name, options, timeline=…, segment_bytes=…) -> bytes

The command runs in a scratch directory with one empty segment, whose size it takes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from walkeeper_common.errors import Refused
from walkeeper_common.lsn import Lsn, segment_name

WAIT_S = 60.0
SAID_CHARACTERS_MAX = 300


class NotRestored(Refused):
    """`walkeeper restore` failed.

    `said` is the end of its stderr, or "" if it printed none. `code` is its exit code, or None if
    it did not end in time.
    """

    def __init__(self, text: str, said: str = "", code: int | None = None) -> None:
        super().__init__(text)
        self.said, self.code = said, code


def restored(
    name: str,
    options: Sequence[str],
    *,
    timeline: int,
    segment_bytes: int,
    limit_s: float | None = None,
) -> bytes:
    """Return the file's bytes. Raise NotRestored if there is none, or after `limit_s`."""
    with tempfile.TemporaryDirectory(prefix="walkeeper_restored_") as scratch:
        wal = os.path.join(scratch, "pg_wal")
        os.mkdir(wal)
        first = segment_name(timeline, Lsn(segment_bytes), segment_bytes)
        with open(os.path.join(wal, first), "wb") as empty:
            empty.truncate(segment_bytes)
        words = ["restore", *options, "--prefetch", "0", "--wait", f"{WAIT_S:g}s"]
        try:
            done = subprocess.run(
                [sys.executable, "-m", "walkeeper_cli", *words, name, "pg_wal/fetched"],
                cwd=scratch,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=limit_s,
            )
        except subprocess.TimeoutExpired as error:
            raise NotRestored(f"restore did not end within {limit_s:g} s") from error
        if done.returncode:
            said = re.sub(r"\s+", " ", done.stderr).strip()[-SAID_CHARACTERS_MAX:]
            text = f"restore ended with {done.returncode}: {said}"
            raise NotRestored(text, said, done.returncode)
        with open(os.path.join(wal, "fetched"), "rb") as file:
            return file.read()
