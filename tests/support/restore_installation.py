"""walkeeper installed where PostgreSQL's user can read it, with what `walkeeper restore` needs.

A checkout may be 0700 and belong to root. So this makes a virtual environment of this Python's own
base, in a directory that everybody may read. It has copies of our packages and of those that
restore imports. Copies, so that a test can damage one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.folders import ROOT
from tests.support.postgres_server import make_directory
from tests.support.waiting import LIMIT_S

PACKAGES = (
    "walkeeper_cli",
    "walkeeper_restore",
    "walkeeper_common",
    "walkeeper_archive",
    "click",
    "crc32c",
)
SCRIPTS = ROOT / "cli" / "scripts"
LEFT_OUT = shutil.ignore_patterns("__pycache__")


class Installation:
    """`script` is the command; `packages` is where it imports from."""

    def __init__(self, directory: Path, more: Sequence[str] = ()) -> None:
        """Install restore, and the packages `more` for other commands."""
        self.directory = directory
        base = getattr(sys, "_base_executable", sys.executable)
        command = [base, "-m", "venv", "--without-pip", str(directory / "venv")]
        subprocess.run(command, check=True, timeout=LIMIT_S)
        self.packages = next((directory / "venv" / "lib").glob("python3*")) / "site-packages"
        for name in (*PACKAGES, *more):
            spec = importlib.util.find_spec(name)
            assert spec is not None and spec.origin is not None, name
            if not spec.submodule_search_locations:  # one file
                shutil.copy(spec.origin, self.packages)
                continue
            source = next(iter(spec.submodule_search_locations))
            shutil.copytree(source, self.packages / name, ignore=LEFT_OUT)
            for metadata in Path(source).parent.glob(f"{name}-*.dist-info"):
                shutil.copytree(metadata, self.packages / metadata.name)
        self.script = directory / "venv" / "bin" / "walkeeper"
        for script in SCRIPTS.iterdir():  # as pip puts them there
            text = script.read_text().replace("#!python\n", f"#!{directory}/venv/bin/python\n")
            (self.script.parent / script.name).write_text(text)
            (self.script.parent / script.name).chmod(0o755)
        subprocess.run(["chmod", "-R", "a+rX", str(directory)], check=True)
        python = directory / "venv" / "bin" / "python"
        compiled = [str(python), "-m", "compileall", "-q", str(self.packages)]
        subprocess.run(compiled, check=True, timeout=LIMIT_S)

    @contextlib.contextmanager
    def without(self, module: str) -> Iterator[None]:
        """Take a module away, as an upgrade that is under way, or went wrong, does."""
        path = self.packages / module
        away = path.with_name(f"{path.name}.away")
        os.rename(path, away)
        try:
            yield
        finally:
            os.rename(away, path)


@contextlib.contextmanager
def installed(more: Sequence[str] = ()) -> Iterator[Installation]:
    directory = make_directory("walkeeper_installed_")
    try:
        yield Installation(directory, more)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
