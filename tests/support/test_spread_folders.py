"""Temporary files of tests lie in a spread directory, and it ends with the tests."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.spread_folders import temporary_files_spread

WHERE = "import tempfile; print(tempfile.gettempdir())"


def test_temporary_files_and_those_of_children_are_spread() -> None:
    before = tempfile.gettempdir(), dict(os.environ)
    with temporary_files_spread() as directory:
        assert Path(tempfile.mkdtemp()).parent == directory
        child = subprocess.run([sys.executable, "-c", WHERE], capture_output=True, text=True)
        assert child.stdout.strip() == str(directory)
        assert stat.S_IMODE(directory.stat().st_mode) == 0o1777
    assert not directory.exists()
    assert (tempfile.gettempdir(), dict(os.environ)) == before


def test_this_run_has_one() -> None:
    assert Path(tempfile.gettempdir()).name.startswith("wk_")
