"""The parts of `make wheels-test` that need no index: names, imports, the file that fits."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.folders import ROOT


def program() -> Any:
    path = ROOT / ".ci" / "wheels.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


WHEELS = program()


class Place:
    """A root directory whose pip takes one file."""

    def __init__(self, root: Path, taken: str) -> None:
        self._root, self._taken = root, taken

    def outside(self, path: str) -> Path:
        return self._root / path.lstrip("/")

    def run(self, *command: str, check: bool) -> subprocess.CompletedProcess[str]:
        assert not check
        return subprocess.CompletedProcess(command, 0 if command[-1].endswith(self._taken) else 1)


@pytest.mark.parametrize(
    ("requirement", "name"),
    [("psycopg[binary]>=3.3", "psycopg"), ("a-b_c==1; os_name == 'posix'", "a-b_c"), ("x", "x")],
)
def test_a_requirement_has_a_name(requirement: str, name: str) -> None:
    assert WHEELS.name_of(requirement) == name


def imports(*names: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WHEELS.IMPORTS, *names]
    return subprocess.run(command, capture_output=True, text=True)


def test_every_library_of_an_extra_is_imported() -> None:
    assert imports("click", "prometheus-client").returncode == 0
    assert imports("click", "no-such-library").returncode != 0


@pytest.mark.parametrize(
    ("taken", "file"),
    [
        ("cp313-cp313-linux_x86_64.whl", "walkeeper-1-cp313-cp313-linux_x86_64.whl"),
        ("py3-none-any.whl", "walkeeper-1-py3-none-any.whl"),
        ("nothing", "walkeeper-1.tar.gz"),
    ],
)
def test_a_python_gets_the_wheel_that_fits_it_or_the_sdist(
    tmp_path: Path, taken: str, file: str
) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    for name in (
        "walkeeper-1-cp311-cp311-linux_x86_64.whl",
        "walkeeper-1-cp313-cp313-linux_x86_64.whl",
        "walkeeper-1-py3-none-any.whl",
        "walkeeper-1.tar.gz",
    ):
        (folder / name).touch()
    assert WHEELS.fitting(Place(tmp_path, taken), ("pip",), "/tmp") == f"/tmp/{file}"
