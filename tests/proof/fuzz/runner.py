"""Runs targets as child processes, follows what libFuzzer says, and keeps what it found.

A run collects its new inputs in build/fuzz/TARGET, where the next one goes on from. corpus.py says
which inputs are kept in the repository.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha1
from pathlib import Path
from random import Random

from tests.proof.fuzz.corpus import CRASHES, inputs_of, pack, unpack
from tests.proof.fuzz.mutation import plain_inputs
from tests.proof.fuzz.statistics import Run
from tests.proof.fuzz.targets import load
from tests.support.folders import ROOT

COLLECTED = ROOT / "build" / "fuzz"
INPUT_TIMEOUT_S = 10
RSS_MB_MAX = 2048
GRACE_S = 60.0
PROGRESS_S = 10.0


@dataclass(frozen=True, slots=True)
class Bound:
    """The end of a run, as so many inputs or minutes, and the seed of its inputs."""

    runs: int | None
    minutes: float | None
    seed: int

    def is_reached(self, run: Run) -> bool:
        """Return True if the run has had its inputs or its time."""
        is_late = self.minutes is not None and run.seconds > self.minutes * 60
        return is_late or run.inputs == self.runs


def write_seeds(target: str) -> Path:
    """Return the folder where a run of this target collects, with the kept inputs and the seeds."""
    folder = COLLECTED / target
    folder.mkdir(parents=True, exist_ok=True)
    unpack(target, folder)
    for data in load(target).short_seeds():
        (folder / sha1(data).hexdigest()).write_bytes(data)
    return folder


def run(target: str, bound: Bound, say: Callable[[str], None]) -> Run:
    """Run a target until its bound, its first failing input, or GRACE_S more than it was given."""
    seconds_max = None if bound.minutes is None else max(1, round(bound.minutes * 60))
    CRASHES.mkdir(exist_ok=True)
    folder = write_seeds(target)
    command = [
        sys.executable, "-m", "tests.proof.fuzz.child", target,
        f"-seed={bound.seed}", f"-timeout={INPUT_TIMEOUT_S}", f"-rss_limit_mb={RSS_MB_MAX}",
        f"-artifact_prefix={CRASHES}/{target}-", "-print_final_stats=1",
        "-use_value_profile=0", "-report_slow_units=5",
        *([] if bound.runs is None else [f"-runs={bound.runs}"]),
        *([] if seconds_max is None else [f"-max_total_time={seconds_max}"]),
        str(folder),
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
        say(_advice(target, path))
    return found


def run_plainly(target: str, bound: Bound, say: Callable[[str], None]) -> Run:
    """Run a target over plain mutations, without libFuzzer and its coverage, as `run` does.

    libFuzzer sees nothing of a compiled path, and slows the path beside it. Plain mutations try
    many times as many inputs.
    """
    loaded, found, started = load(target), Run(target), time.monotonic()
    inputs, said_at = [*inputs_of(target).values(), *loaded.short_seeds()], started
    for data in plain_inputs(loaded, inputs, Random(bound.seed)):
        try:
            loaded.run(data)
        except Exception as error:
            found.crashes.append(str(_kept_failure(target, data)))
            say(f"{type(error).__name__}: {error}\n{_advice(target, found.crashes[0])}")
            break
        found.inputs += 1
        now = time.monotonic()
        found.seconds = now - started
        if bound.is_reached(found):
            break
        if now - said_at >= PROGRESS_S:
            said_at = now
            say(f"{target}: {found.inputs:,} inputs")
    return found


def _kept_failure(target: str, data: bytes) -> Path:
    CRASHES.mkdir(exist_ok=True)
    path = CRASHES / f"{target}-plain-{sha1(data).hexdigest()}"
    path.write_bytes(data)
    return path


def _advice(target: str, path: str) -> str:
    return f"failing input: {path}\nrepeat it: {repetition(target, path)}"


def repetition(target: str, path: str) -> str:
    """Return the command that runs one input again, without atheris."""
    shown = os.path.relpath(path, ROOT)
    return f".venv/bin/python -m tests.proof.fuzz {target} --input {shown}"


def keep(target: str, say: Callable[[str], None]) -> None:
    """Make the corpus the smallest set of the collected inputs that has the same coverage."""
    folder = write_seeds(target)
    merged = COLLECTED / f"{target}.merged"
    shutil.rmtree(merged, ignore_errors=True)
    merged.mkdir(parents=True)
    itself = COLLECTED / f"{target}.sh"
    itself.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.proof.fuzz.child {target} "$@"\n')
    itself.chmod(0o755)
    subprocess.run(
        [str(itself), "-merge=1", str(merged), str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        env={**os.environ, "WALKEEPER_FUZZ_SELF": str(itself)},
    )
    count, total = pack(target, (path.read_bytes() for path in merged.iterdir()))
    say(f"{target}: {count} inputs kept, {total} bytes")
