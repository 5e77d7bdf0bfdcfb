"""Runs the drill: each incident on real processes, and the answer of every view.

    python -m tests.proof.drill                    all incidents, as root; 20 minutes
    python -m tests.proof.drill --only full_disk   incidents whose name matches
    python -m tests.proof.drill --fire             wait until the alerts fire, which takes minutes
    python -m tests.proof.drill --write            write docs/drill.md too, from the last results
    python -m tests.proof.drill --list

The last result of each incident is in build/drill. Without one an incident keeps the figures that
docs/drill.md has. The alerts need Debian's package `prometheus`.
Without it they are not asked.

Exit codes: 0 each view reported and each remedy helped, 1 a fault of ours, 2 usage.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict

from tests.proof.drill.all_incidents import INCIDENTS
from tests.proof.drill.drill_page import page
from tests.proof.drill.incident_run import Result, drill
from tests.proof.drill.page_reading import read_page
from tests.proof.drill.prometheus import found_prometheus
from tests.proof.drill.views import Sight
from tests.support.folders import ROOT
from tests.support.program_parser import program_parser

PAGE = ROOT / "docs/drill.md"
RESULTS = ROOT / "build/drill"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen incidents; return the exit code."""
    asked = _arguments(arguments)
    chosen = [each for each in INCIDENTS if re.search(asked.only or "", each.name)]
    if asked.list or not chosen:
        for each in INCIDENTS:
            _say(f"{each.name:<28} {each.about}")
        return 0 if asked.list else 2
    if os.geteuid():
        _say("the drill mounts small disks, so it needs root")
        return 2
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # the stage is taken down
    if found_prometheus() is None:
        _say("no prometheus: the alerts are not asked (apt-get install prometheus)")
    results, broken = [], []
    for each in chosen:
        started_s = time.monotonic()
        try:
            result = drill(each, fire=asked.fire)
        except Exception:
            broken.append(each.name)
            _say(f"{each.name}: the drill broke\n{traceback.format_exc()}")
            continue
        results.append(result)
        store(result)
        _say(shown(result, time.monotonic() - started_s))
    faulty = [result.incident.name for result in results if result.faults]
    if asked.write and not broken:
        found = known_results()
        known = {result.incident for result in found}
        PAGE.write_text(page(found, [each.name for each in INCIDENTS if each not in known]))
    _say(f"{len(results)} incidents; faults in {', '.join(faulty) or 'none'}")
    for name in (*faulty, *broken):
        _say(f"repeat it: python -m tests.proof.drill --only {name}")
    return 1 if faulty or broken else 0


def store(result: Result) -> None:
    """Keep the result for the page."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    facts = {**asdict(result), "incident": result.incident.name}
    (RESULTS / f"{result.incident.name}.json").write_text(json.dumps(facts))


def known_results() -> list[Result]:
    """Return the stored results, and those of the page for incidents without one."""
    found = {result.incident: result for result in read_page(PAGE.read_text())}
    found |= {result.incident: result for result in stored()}
    return [found[each] for each in INCIDENTS if each in found]


def stored() -> list[Result]:
    """Return the last result of each incident that has one, in the order of the catalogue."""
    found = []
    for each in INCIDENTS:
        path = RESULTS / f"{each.name}.json"
        if path.exists():
            facts = json.loads(path.read_text())
            sights = tuple(Sight(**sight) for sight in facts["sights"])
            found.append(Result(each, sights, facts["well_after_s"], tuple(facts["faults"])))
    return found


def shown(result: Result, took_s: float) -> str:
    """Return the result as lines."""
    lines = [f"{result.incident.name}: {took_s:.0f} s in all"]
    for each in result.sights:
        when = "SILENT" if each.after_s is None else f"{each.after_s:.1f} s"
        fired = "" if each.fires_s is None else f" {each.wanted} after {each.fires_s:.1f} s"
        lines.append(f"  {each.view:<8} {when:>8}  {each.text or each.wanted}{fired}")
        if each.remedy:
            lines.append(f"  {'':<18} do: {each.remedy}")
    well = result.well_after_s
    lines.append(f"  well again after {'never' if well is None else f'{well:.1f} s'}")
    return "\n".join([*lines, *(f"  FAULT: {fault}" for fault in result.faults)])


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = program_parser("tests.proof.drill", __doc__)
    parser.add_argument("--only", metavar="REGEX", help="incidents whose name matches")
    parser.add_argument("--fire", action="store_true", help="wait until each alert fires")
    parser.add_argument("--write", action="store_true", help="write docs/drill.md")
    parser.add_argument("--list", action="store_true", help="name the incidents")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
