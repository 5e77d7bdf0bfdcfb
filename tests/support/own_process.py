"""A process of its own for a test of what one process has: open descriptors and their limit.

All tests of a worker share one process. Earlier ones leave descriptors in it, and threads and
garbage that close them later. No test there can count on how many are open, but on how many of
its own directory are: `open_below`.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.support.folders import ROOT

CALL = "import {module}, pathlib, sys; {module}.{name}(pathlib.Path(sys.argv[1]))"


def open_below(directory: Path) -> int:
    """Count the descriptors of this process that are open on files there."""
    found = 0
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the listing's own, or one that is closed meanwhile
            found += os.readlink(f"/proc/self/fd/{number}").startswith(f"{directory}/")
    return found


def run_in_own_process(
    claim: Callable[[Path], None], directory: Path, *, descriptors_max: int
) -> None:
    """Call `claim`, a function of a module, with `directory`. AssertionError if it fails."""

    def limit() -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors_max, hard))

    call = CALL.format(module=claim.__module__, name=claim.__name__)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", call, str(directory)],
        cwd=ROOT, capture_output=True, text=True, preexec_fn=limit,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
