"""Runs one incident: cause, watch, remedy, and the rows that must be there in the end."""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.proof.chaos.loop_disk import remove_leftover_mounts
from tests.proof.drill.incident import Commits, Incident
from tests.proof.drill.incident_stage import Stage
from tests.proof.drill.views import Sight, watch
from tests.support.waiting import NotInTime, wait_until

TOLD_S = 90.0  # for a view to tell, on a loaded machine
WELL_S = 180.0
PREFIX = "walkeeper_drill_"


@dataclass(frozen=True, slots=True)
class Result:
    """The sights of an incident, and what the remedy did. `faults` are ours."""

    incident: type[Incident]
    sights: tuple[Sight, ...]
    well_after_s: float | None
    faults: tuple[str, ...]


def drill(incident_class: type[Incident], *, fire: bool = False) -> Result:
    """Run one incident on a stage of its own; with `fire` wait until its alerts fire."""
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name:
        Path(name).chmod(0o755)
        try:
            with Stage.ready(Path(name)) as stage:
                return _run(incident_class, stage, fire=fire)
        finally:
            remove_leftover_mounts(name)


def _run(incident_class: type[Incident], stage: Stage, *, fire: bool) -> Result:
    incident = incident_class(stage)
    stage.wait_well()
    stage.mark()
    stage.begin()
    incident.cause()
    waiting = stage.waiting_commit() if incident.commits is not Commits.FAIL else None
    sights = watch(incident, TOLD_S, fire=fire)
    faults = [f"{each.view} does not tell: {each.wanted}" for each in sights if not each.text]
    faults += _silent_remedy(incident, sights)
    if waiting is not None:
        faults += _commits(incident, waiting)
    mended_s = time.monotonic()
    incident.mend()
    try:
        _wait_well(incident, waiting)
    except NotInTime as error:
        return Result(incident_class, tuple(sights), None, (*faults, f"the remedy: {error}"))
    if missing := stage.missing_rows(incident.keeper()):
        faults.append(f"acknowledged rows are missing: {sorted(missing)}")
    return Result(incident_class, tuple(sights), time.monotonic() - mended_s, tuple(faults))


def _silent_remedy(incident: Incident, sights: list[Sight]) -> list[str]:
    """Return a fault if no view prints the remedy that the drill is about to run."""
    wanted = incident.expected.remedy
    if wanted is None:
        return []
    told = "\n".join(f"{each.text} {each.remedy}" for each in sights)
    return [] if re.search(wanted, told) else [f"no view prints the remedy {wanted!r}: {told}"]


def _commits(incident: Incident, waiting: subprocess.Popen[str]) -> list[str]:
    """Return a fault if a commit returned that must hang, or the other way round."""
    if incident.commits is Commits.HANG:
        return ["a commit returned"] if waiting.poll() is not None else []
    try:
        wait_until(lambda: waiting.poll() is not None, WELL_S)
    except NotInTime:
        return ["a commit hangs"]
    return [] if waiting.returncode == 0 else [f"a commit failed: {waiting.communicate()[0]}"]


def _wait_well(incident: Incident, waiting: subprocess.Popen[str] | None) -> None:
    wait_until(lambda: incident.stage.verdict()["state"] == "OK", WELL_S)
    if incident.keeper() is incident.stage.primary:
        incident.stage.commit()
        if waiting is not None:
            wait_until(lambda: waiting.poll() is not None, WELL_S)
