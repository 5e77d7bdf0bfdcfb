"""The seeds of a run: the same for the same tree, so that one tree has one verdict.

drawn_seed()    for random work: fixed, or WALKEEPER_TEST_SEED (the soak sets it)
order_seed()    for the order of the tests: follows from the files' contents
"""

from __future__ import annotations

import os
import sys
from hashlib import sha256

from tests.support.folders import PRODUCT, ROOT

SEED = "WALKEEPER_TEST_SEED"
FOLDERS = (*PRODUCT, "tests")
FIXED = 1


def is_fixed() -> bool:
    """Return True if random work repeats what it did in the run before."""
    return not os.environ.get(SEED)


def seed_of_run() -> int:
    """Return the seed that all random work of this run begins with."""
    return FIXED if is_fixed() else int(os.environ[SEED])


def drawn_seed() -> int:
    """Return the seed of a test's random work, and write it where a failed test shows it."""
    sys.stderr.write(f"{SEED}={seed_of_run()}\n")
    return seed_of_run()


def order_seed() -> int:
    """Return 32 bits of a hash over the names and contents of all Python files, which takes 50 ms.

    The hash needs no git: an unpacked archive and a clone with local changes have one as well.
    """
    digest = sha256()
    for path in sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        digest.update(f"{path.relative_to(ROOT)}\0".encode())
        digest.update(sha256(path.read_bytes()).digest())
    return int.from_bytes(digest.digest()[:4], "big")
