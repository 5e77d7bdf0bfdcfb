"""Runs targets as child processes, follows what libFuzzer says, and keeps what it found.

Each target has three folders: corpus/TARGET is kept in the repository, small and minimised;
crashes/TARGET-* are inputs that failed; build/fuzz/TARGET is where a run collects what it found
new and where the next one goes on from.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from hashlib import sha1
from pathlib import Path

from tests.fuzz.catalog import load
from tests.fuzz.statistics import Run

ROOT = Path(__file__).parent.parent.parent
CORPUS = Path(__file__).parent / "corpus"
CRASHES = Path(__file__).parent / "crashes"
COLLECTED = ROOT / "build" / "fuzz"
INPUT_TIMEOUT_S = 10
RSS_MB_MAX = 2048
GRACE_S = 60.0
PROGRESS_S = 10.0
KEPT_BYTES_MAX = 40_000  # of one target


def corpus_of(target: str) -> list[Path]:
    """The inputs that are kept, smallest first, and those that once failed."""
    kept = [path for path in (CORPUS / target).glob("*") if path.is_file()]
    kept += CRASHES.glob(f"{target}-*")
    return sorted(kept, key=lambda path: (path.stat().st_size, path.name))


def write_seeds(target: str) -> Path:
    """Where a run of this target collects; the inputs that code makes are in it."""
    folder = COLLECTED / target
    folder.mkdir(parents=True, exist_ok=True)
    loaded = load(target)
    for data in loaded.seeds():
        if len(data) <= loaded.bytes_max:
            (folder / sha1(data).hexdigest()).write_bytes(data)
    return folder


def run(
    target: str,
    *,
    runs: int | None,
    minutes: float | None,
    seed: int,
    say: Callable[[str], None],
) -> Run:
    """One target until its bound, its first failing input, or GRACE_S more than it was given."""
    seconds_max = None if minutes is None else max(1, round(minutes * 60))
    CRASHES.mkdir(exist_ok=True)
    folder = write_seeds(target)
    kept = CORPUS / target
    command = [
        sys.executable, "-m", "tests.fuzz.child", target,
        f"-seed={seed}", f"-timeout={INPUT_TIMEOUT_S}", f"-rss_limit_mb={RSS_MB_MAX}",
        f"-artifact_prefix={CRASHES}/{target}-", "-print_final_stats=1",
        "-use_value_profile=0", "-report_slow_units=5",
        *([] if runs is None else [f"-runs={runs}"]),
        *([] if seconds_max is None else [f"-max_total_time={seconds_max}"]),
        str(folder), *([str(kept)] if kept.is_dir() else []),
    ]  # fmt: skip
    found, started = Run(target), time.monotonic()
    said_at, tail = started, list[str]()
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", env={**os.environ, "PYTHONHASHSEED": "0"},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        for line in process.stdout:
            tail = [*tail[-80:], line.rstrip()]
            now = time.monotonic()
            found.seconds = now - started
            if found.read(line) and now - said_at >= PROGRESS_S:
                said_at = now
                say(
                    f"{target}: {found.inputs:,} inputs, {found.edges} edges, "
                    f"{found.features} features, corpus {found.corpus}"
                )
            if seconds_max is not None and found.seconds > seconds_max + GRACE_S:
                break
    finally:
        process.kill()
        code = process.wait()
    found.seconds = time.monotonic() - started
    if found.crashes or code not in (0, -9):
        say("\n".join(line for line in tail if not line.startswith(("#", "stat::", "INFO:"))))
    if code not in (0, -9) and not found.crashes:
        found.failed = f"exit {code}"
    for path in found.crashes:
        say(f"failing input: {path}\nrepeat it: {repetition(target, path)}")
    return found


def repetition(target: str, path: str) -> str:
    """The command that runs one input again, without atheris."""
    shown = os.path.relpath(path, ROOT)
    return f".venv/bin/python -m tests.fuzz {target} --input {shown}"


def keep(target: str, say: Callable[[str], None]) -> None:
    """Makes corpus/TARGET the smallest set of what was collected that has the same coverage.

    Inputs whose name says what they showed stay as they are.
    """
    folder, kept = write_seeds(target), CORPUS / target
    merged = COLLECTED / f"{target}.merged"
    shutil.rmtree(merged, ignore_errors=True)
    merged.mkdir(parents=True)
    kept.mkdir(parents=True, exist_ok=True)
    itself = COLLECTED / f"{target}.sh"
    itself.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.fuzz.child {target} "$@"\n')
    itself.chmod(0o755)
    subprocess.run(
        [str(itself), "-merge=1", str(merged), str(folder), str(kept)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        env={**os.environ, "WALKEEPER_FUZZ_SELF": str(itself)},
    )
    for path in kept.iterdir():
        if is_digest(path.name):
            path.unlink()
    total = 0
    for path in sorted(_inputs(merged), key=lambda path: (path.stat().st_size, path.name)):
        total += path.stat().st_size
        if total > KEPT_BYTES_MAX:
            break
        data = path.read_bytes()
        (kept / sha1(data).hexdigest()[:16]).write_bytes(data)
    say(f"{target}: {len(list(kept.iterdir()))} inputs kept, {min(total, KEPT_BYTES_MAX)} bytes")


def _inputs(folder: Path) -> Iterable[Path]:
    return (path for path in folder.iterdir() if path.is_file())


def is_digest(name: str) -> bool:
    return len(name) == 16 and all(c in "0123456789abcdef" for c in name)
