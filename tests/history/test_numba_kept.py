"""Compiled loops where numba can keep nothing: no home, and a package that root has installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CODE = """
from numba.core.caching import FunctionCache
from walkeeper_history.records.numba_kept import kept

FunctionCache._impl_class._locator_classes = []  # what a user without a writable place has

@kept
def doubled(number: int) -> int:
    return number + number

assert doubled(21) == 42
"""


def test_a_user_who_can_keep_nothing_compiles_each_time(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(CODE)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
