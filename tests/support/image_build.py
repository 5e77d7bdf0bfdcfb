"""docker/Dockerfile as far as it is ours: what it copies, and its pip step run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.support.folders import ROOT

DOCKERFILE = ROOT / "docker" / "Dockerfile"
BUILD_S = 300
# No bytecode, and a fast path that is compiled without optimising it: seconds less.
QUICK = {"PIP_NO_COMPILE": "1", "CFLAGS": "-O0 -g0"}


def instructions() -> list[tuple[str, str]]:
    """Return (`COPY`, `cli cli`) and so on, lines that go on joined."""
    text = re.sub(r"\\\n\s*", "", DOCKERFILE.read_text())
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def copied() -> list[str]:
    """List the paths that are copied from the repository's root, not from another stage."""
    copies = (rest.split()[:-1] for word, rest in instructions() if word == "COPY")
    return [s for sources in copies if not sources[0].startswith("--from=") for s in sources]


def pip_steps() -> list[str]:
    return [rest for word, rest in instructions() if word == "RUN" and " pip " in rest]


def install(directory: Path) -> Path:
    """Install as the pip step does with the copied files; return the directory of the programs."""
    source, environment = directory / "src", directory / "environment"
    source.mkdir()
    for name in copied():
        if (ROOT / name).is_dir():
            leave = shutil.ignore_patterns(
                "__pycache__", "*.egg-info", "*.so", "_fastpath.c", "_walk.c"
            )
            shutil.copytree(ROOT / name, source / name, ignore=leave)
        else:
            shutil.copy(ROOT / name, source / name)
    _run([sys.executable, "-m", "venv", str(environment)], directory, os.environ)
    programs = environment / "bin"
    for step in pip_steps():
        path = f"{programs}:/usr/bin:/bin"
        _run(["/bin/sh", "-c", step], source, {**os.environ, **QUICK, "PATH": path})
    return programs


def _run(command: list[str], directory: Path, environment: Mapping[str, str]) -> None:
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=BUILD_S
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
