"""Compiled parts under AddressSanitizer and UBSan: their tests with an instrumented build."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fast import NEEDS_FAST_PATH
from tests.support.folders import ROOT

FAST_PATH = (
    "tests/safekeeper/test_fast_append.py",
    "tests/safekeeper/test_fast_files.py",
    "tests/safekeeper/test_fast_hostile.py",
    "tests/proposer/test_fast_stream.py",
    "tests/proposer/test_fast_tls.py",
)
WALK = ("tests/history/test_segment_sums.py", "tests/history/test_compiled_walk.py")
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


@pytest.mark.parametrize(
    ("package", "source", "tests"),
    [
        ("fastpath/walkeeper_fastpath", "_fastpath.pyx", FAST_PATH),
        ("analysis/walkeeper_wal", "records/_walk.pyx", WALK),
    ],
    ids=["fast path", "walk"],
)
def test_no_byte_is_touched_beyond_its_memory(
    tmp_path: Path, package: str, source: str, tests: tuple[str, ...]
) -> None:
    without = shutil.ignore_patterns("*.so", "*.c", "__pycache__")
    shutil.copytree(ROOT / package, tmp_path / package, ignore=without)
    path = tmp_path / package / source
    flags = f"-O1 -g {SANITIZERS} -fno-omit-frame-pointer"
    built = subprocess.run(
        [sys.executable, "-m", "Cython.Build.Cythonize", "-q", "-i", path.name],
        cwd=path.parent,
        env={**os.environ, "CFLAGS": flags, "LDFLAGS": SANITIZERS},
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
    )
    assert built.returncode == 0, built.stderr
    others = os.environ.get("PYTHONPATH", "")
    env = {
        **os.environ,
        "PYTHONPATH": f"{(tmp_path / package).parent}{os.pathsep}{others}",
        "LD_PRELOAD": f"{library('libasan.so')} {library('libubsan.so')}",
        "ASAN_OPTIONS": "detect_leaks=0",  # Python frees little of what it has at its end
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    }
    module = ".".join((Path(package).name, *Path(source).with_suffix("").parts))
    asked = f"import {module} as it; print(it.__file__)"
    where = subprocess.run([sys.executable, "-c", asked], env=env, capture_output=True, text=True)
    assert where.stdout.startswith(str(tmp_path)), where.stderr
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *OPTIONS, *tests],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=TESTS_TIMEOUT_S,
    )
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr
    assert "skipped" not in done.stdout and "runtime error" not in done.stderr, done.stderr
