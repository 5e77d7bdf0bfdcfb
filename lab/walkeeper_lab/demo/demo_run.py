"""The demo's run: the setup, each step in order, and the removal of everything. A shell.

A step is a module of `demo.steps` with a STEP. A new step goes into the list here.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from walkeeper_common.errors import Refused, WalkeeperError
from walkeeper_lab.demo.demo_output import Progress
from walkeeper_lab.demo.stage import Stage
from walkeeper_lab.demo.step import ClaimFailed, Step
from walkeeper_lab.demo.steps import (
    fed_standby,
    killed_proposer,
    killed_safekeeper,
    lost_primary,
    quorum_commit,
)
from walkeeper_lab.local.local_tls import TlsMaker
from walkeeper_lab.local.programs import Programs, find_programs
from walkeeper_lab.local.running import forget_surroundings, interruptible, prepare

STEPS: tuple[Step, ...] = (
    quorum_commit.STEP,
    killed_safekeeper.STEP,
    killed_proposer.STEP,
    fed_standby.STEP,
    lost_primary.STEP,  # the last one: it leaves no primary
)


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """The command's flags. Without a `directory`, the demo makes a temporary one."""

    seconds: float = 20.0
    directory: str | None = None
    bindir: str | None = None
    make_tls: TlsMaker | None = None


def run(settings: DemoSettings, steps: Sequence[Step] = STEPS) -> int:
    """Run the demo and return its exit code, which is 0 if every claim holds.

    Raise Refused with the claim that does not hold, or with the program that is missing.
    """
    directory = _empty_directory(settings.directory)
    forget_surroundings()
    try:
        code = asyncio.run(interruptible(_show(settings, directory, steps)))
    except WalkeeperError as error:
        raise Refused(f"{error} (files and logs are in {directory})") from error
    if settings.directory is None:
        shutil.rmtree(directory, ignore_errors=True)
    return code


def _empty_directory(wanted: str | None) -> Path:
    """Return the directory for all files of the demo; raise Refused if it is not empty."""
    if wanted is None:
        directory = Path(tempfile.mkdtemp(prefix="walkeeper_demo_"))
    else:
        directory = Path(wanted).absolute()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if any(directory.iterdir()):
                raise Refused(f"--dir {directory} is not empty; name another one")
        except OSError as error:
            raise Refused(f"--dir: {error}") from error
    prepare(directory)
    return directory


async def _show(settings: DemoSettings, directory: Path, steps: Sequence[Step]) -> None:
    with Progress() as progress:
        programs = await asyncio.to_thread(find_programs, settings.bindir, directory)
        progress.console.print(_headline(programs, directory))
        tls = settings.make_tls(directory / "tls") if settings.make_tls is not None else None
        stage = Stage(programs, directory, settings.seconds, tls)
        try:
            await stage.set_up(progress.say)
            await _take_steps(stage, progress, steps)
        finally:
            await stage.close()
    seconds = stage.load.now_s() - stage.began_s
    progress.console.print(f"\n{len(steps)} claims proven in {seconds:.0f} s.", style="bold")


async def _take_steps(stage: Stage, progress: Progress, steps: Sequence[Step]) -> None:
    watching = asyncio.create_task(progress.watch(stage), name="progress")
    try:
        for number, step in enumerate(steps, 1):
            progress.title(number, step.title)
            try:
                progress.proven(step.claim, await step.run(stage))
            except WalkeeperError as error:
                progress.failed(step.claim, str(error))
                raise ClaimFailed(f"claim failed: {step.claim}: {error}") from error
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching


def _headline(programs: Programs, directory: Path) -> str:
    user = f" as user {programs.user}" if programs.user else ""
    return (
        f"walkeeper demo: PostgreSQL {programs.version} ({programs.origin}, {programs.bindir})"
        f"{user}, three safekeepers and a proposer in {directory}"
    )
