"""The seed of a run: WAL_SEED, or a fresh one; printed, so that a failure can be repeated."""

from __future__ import annotations

import os
import random
import sys


def drawn_seed() -> int:
    seed = int(os.environ.get("WAL_SEED") or random.SystemRandom().randrange(1_000_000))
    sys.stderr.write(f"WAL_SEED={seed}\n")
    return seed
