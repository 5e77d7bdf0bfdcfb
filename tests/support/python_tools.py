"""Programs from PyPI that stand beside PostgreSQL: Patroni, Barman. Each has its own environment.

    tool_programs("patroni-4.1.5", ["patroni[raft]==4.1.5"]) -> Path of bin/

Installed once, into the cache of tests.support.installations, where the servers' user can read
it. The version is that which was tried; another one is another directory. `Unavailable` says why
not.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.installations import Unavailable, cache_directory

INSTALL_TIMEOUT_S = 300


def tool_programs(name: str, requirements: Sequence[str]) -> Path:
    """Return a tool's programs; install it if need be."""
    directory = cache_directory() / name
    programs = directory / "venv" / "bin"
    if not (directory / "complete").exists():
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        base = getattr(sys, "_base_executable", sys.executable)
        pip = [str(programs / "python"), "-m", "pip", "install", "--quiet"]
        for command in (
            [base, "-m", "venv", str(directory / "venv")],
            [*pip, "--disable-pip-version-check", "wheel", "setuptools"],
            [*pip, "--disable-pip-version-check", *requirements],
        ):
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S
            )
            if done.returncode:
                raise Unavailable(f"{' '.join(command)}: {done.stderr[-1000:]}")
        subprocess.run(["chmod", "-R", "a+rX", str(directory)], check=True)
        (directory / "complete").touch()
    return programs
