"""Compiled loops where numba can keep nothing: no home, and a package that root has installed."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

from tests.support.waiting import LIMIT_S

CODE = """
from walkeeper_cli.history.compiler_notice import tell_who_waits
from numba.core.caching import FunctionCache
from walkeeper_wal.records.numba_kept import kept

if {homeless}:
    FunctionCache._impl_class._locator_classes = []  # what a user without a writable place has

tell_who_waits()

@kept
def doubled(number: int) -> int:
    return number + number

@kept
def tripled(number: int) -> int:
    return number + number + number

assert doubled(21) == 42 and tripled(14) == 42
"""


def said(directory: Path, *, homeless: bool, terminal: bool = True) -> str:
    """Return the output on stderr."""
    script = directory / "script.py"
    script.write_text(CODE.replace("{homeless}", str(homeless)))
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(directory / "kept")}
    reader, writer = pty.openpty() if terminal else os.pipe()
    try:
        done = subprocess.run(
            [sys.executable, str(script)], stderr=writer, timeout=LIMIT_S, env=environment
        )
        os.write(writer, b"|")
        text = os.read(reader, 1 << 16).decode()
    finally:
        os.close(reader)
        os.close(writer)
    assert done.returncode == 0, text
    return text.partition("|")[0]


def test_a_user_who_can_keep_nothing_compiles_each_time(tmp_path: Path) -> None:
    for _ in range(2):
        assert "in each run: it cannot be kept" in said(tmp_path, homeless=True)


def test_a_wait_for_the_compiler_is_explained_once(tmp_path: Path) -> None:
    text = said(tmp_path, homeless=False)
    assert text.count("compiling") == 1 and str(tmp_path / "kept") in text, text
    assert said(tmp_path, homeless=False) == "", "it was kept"


def test_no_message_appears_without_a_terminal(tmp_path: Path) -> None:
    assert said(tmp_path, homeless=False, terminal=False) == ""
