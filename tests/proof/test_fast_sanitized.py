"""The compiled parts under AddressSanitizer and UBSan: their tests with an instrumented build."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.fast import NEEDS_FAST_PATH
from tests.support.folders import ROOT


@dataclass(frozen=True, slots=True)
class Part:
    """The root of packages, the sources in it that are compiled, and the tests of these."""

    root: str
    sources: tuple[str, ...]
    tests: tuple[str, ...]


PARTS = (
    Part(
        "fastpath",
        ("walkeeper_fastpath/_fastpath.pyx",),
        (
            "tests/safekeeper/test_fast_append.py",
            "tests/safekeeper/test_fast_files.py",
            "tests/safekeeper/test_fast_hostile.py",
            "tests/proposer/test_fast_stream.py",
            "tests/proposer/test_fast_primary.py",
            "tests/proposer/test_fast_announcements.py",
            "tests/proposer/test_fast_tls.py",
        ),
    ),
    Part(
        "analysis",
        (
            "walkeeper_wal/records/_walk.pyx",
            "walkeeper_replay/redo/_redo.pyx",
            "walkeeper_replay/tuples/_tuples.pyx",
        ),
        (
            "tests/history/test_segment_sums.py",
            "tests/history/test_compiled_walk.py",
            "tests/replay/test_compiled_redo.py",
        ),
    ),
)
SANITIZERS = "-fsanitize=address,undefined"
BUILD_TIMEOUT_S, TESTS_TIMEOUT_S = 300, 900
OPTIONS = ("-q", "-s", "-p", "no:randomly", "-p", "no:cacheprovider")

pytestmark = [
    NEEDS_FAST_PATH,
    pytest.mark.soak,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed"),
]


def library(name: str) -> str:
    """Return the path of a library of the compiler."""
    found = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True)
    return found.stdout.strip()


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.root)
def test_no_byte_is_touched_beyond_its_memory(tmp_path: Path, part: Part) -> None:
    without = shutil.ignore_patterns("*.so", "*.c", "__pycache__")
    shutil.copytree(ROOT / part.root, tmp_path / part.root, ignore=without)
    flags = f"-O1 -g {SANITIZERS} -fno-omit-frame-pointer"
    others = os.environ.get("PYTHONPATH", "")
    env = {
        **os.environ,
        "PYTHONPATH": f"{tmp_path / part.root}{os.pathsep}{others}",
        "LD_PRELOAD": f"{library('libasan.so')} {library('libubsan.so')}",
        "ASAN_OPTIONS": "detect_leaks=0",  # Python frees little of what it has at its end
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    }
    for source in part.sources:
        path = tmp_path / part.root / source
        built = subprocess.run(
            [sys.executable, "-m", "Cython.Build.Cythonize", "-q", "-i", path.name],
            cwd=path.parent,
            env={**os.environ, "CFLAGS": flags, "LDFLAGS": SANITIZERS},
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT_S,
        )
        assert built.returncode == 0, built.stderr
        module = source.removesuffix(".pyx").replace("/", ".")
        asked = f"import {module} as it; print(it.__file__)"
        where = subprocess.run(
            [sys.executable, "-c", asked], env=env, capture_output=True, text=True
        )
        assert where.stdout.startswith(str(tmp_path)), where.stderr
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *OPTIONS, *part.tests],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=TESTS_TIMEOUT_S,
    )
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr
    assert "skipped" not in done.stdout and "runtime error" not in done.stderr, done.stderr
