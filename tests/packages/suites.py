"""A program of this folder plays in a tree of each Debian that its options name.

return over_suites(options, play)       play(suite, options) for each; an exit code
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable

SKIPPED = 77
EXPOSURE_MAX = 2.0  # as `systemd-analyze security` rates it, from 0 to 10 for the worst


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def over_suites(
    options: argparse.Namespace, play: Callable[[str, argparse.Namespace], None]
) -> int:
    """Play in each of `options.suites`. Return 0, or SKIPPED where no tree can be made."""
    if os.geteuid() or not shutil.which("debootstrap"):
        say("skipped: trees of Debian need root and debootstrap")
        return SKIPPED
    begun_s = time.monotonic()
    for suite in options.suites.split(","):
        play(suite, options)
    say(f"all passed in {time.monotonic() - begun_s:.0f} s")
    return 0
