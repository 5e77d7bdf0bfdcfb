"""A benchmark's run: it makes a primary and its sides, measures and destroys them. A shell."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from walkeeper_common.errors import Refused
from walkeeper_common.shell.log_lines.operator_log import log_to_stderr
from walkeeper_lab.bench.bench_report import Pair, Report, check_outputs
from walkeeper_lab.bench.bench_server import BenchServer
from walkeeper_lab.bench.cables import Cables
from walkeeper_lab.bench.disk import Disk, disk_of
from walkeeper_lab.bench.pairs import Series
from walkeeper_lab.bench.rounds import Bench, take_turns
from walkeeper_lab.bench.sides import Side, sides_of_all
from walkeeper_lab.local.postgresql import PostgreSQL
from walkeeper_lab.local.programs import Programs, find_programs
from walkeeper_lab.local.running import forget_surroundings, interruptible, prepare

NEEDED = ("pgbench", "pg_receivewal")


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """The flags that all benchmarks share."""

    rounds: int = 3
    scale: int = 20
    directory: str | None = None
    bindir: str | None = None
    json: str | None = None
    plot: str | None = None
    round_trip: float = 0.0
    pin: bool = False


MakeSides = Callable[[PostgreSQL, Path, Cables], list[Side]]


def run(
    settings: BenchSettings,
    make: Callable[[BenchServer], Bench],
    make_sides: MakeSides = sides_of_all,
    *,
    ratio: Pair = ("walkeeper", "pg_receivewal"),
    also: tuple[Pair, ...] = (),
) -> int:
    """Run a benchmark and return the exit code.

    The report shows the ratio of the first side in `ratio` to the second, and of each pair in
    `also`.
    Raise Refused if a program is missing or does not start.
    """
    check_outputs(settings.json, settings.plot)
    forget_surroundings()
    directory = _directory(settings.directory)
    try:
        compared = (ratio, *also)
        return asyncio.run(interruptible(_measure(settings, directory, make, make_sides, compared)))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _directory(parent: str | None) -> Path:
    try:
        directory = Path(tempfile.mkdtemp(prefix="walkeeper_bench_", dir=parent)).absolute()
    except OSError as error:
        raise Refused(f"--dir: {error}") from error
    prepare(directory)
    return directory


def run_puts(settings: BenchSettings, url: str | None, segments: int) -> int:
    """Run `bench archive-put`, which needs no PostgreSQL, and return the exit code."""
    log_to_stderr("ERROR")
    check_outputs(settings.json, settings.plot)
    directory = _directory(settings.directory)
    try:
        return asyncio.run(interruptible(_measure_puts(settings, directory, url, segments)))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def _measure_puts(
    settings: BenchSettings, directory: Path, url: str | None, segments: int
) -> None:
    from walkeeper_lab.bench.archive_put import measure

    console, progress = Console(soft_wrap=True), Console(stderr=True, soft_wrap=True)
    disk = disk_of(directory)
    place = url or str(directory)
    puts = await measure(
        place, directory, segments, settings.rounds, lambda text: progress.print(text, style="dim")
    )
    report = Report(
        title=f"{puts.title}, {segments} in all, to {url or 'the same disk'}",
        disk=disk,
        cpus=len(os.sched_getaffinity(0)),
        postgresql=None,
        rounds=settings.rounds,
        sides=puts.sides,
        ours="walkeeper",
        theirs=puts.plain,
        series=[puts.series],
    )
    _tell(report, settings, console)


async def _measure(
    settings: BenchSettings,
    directory: Path,
    make: Callable[[BenchServer], Bench],
    make_sides: MakeSides,
    compared: tuple[Pair, ...],
) -> None:
    console, progress = Console(soft_wrap=True), Console(stderr=True, soft_wrap=True)
    far = _set_apart() if settings.pin else frozenset[int]()
    disk = disk_of(directory)
    programs = await asyncio.to_thread(find_programs, settings.bindir, directory)
    for name in NEEDED:
        if not os.access(programs.bindir / name, os.X_OK):
            raise Refused(f"{programs.bindir} has no {name}; name another with --bindir")
    server = PostgreSQL(programs, directory, "primary", secrets.token_hex(16))
    primary = BenchServer(server, settings.scale)
    progress.print(f"making a primary with pgbench's tables, scale {settings.scale}", style="dim")
    try:
        await primary.make()
        cables = Cables(settings.round_trip)
        sides = make_sides(server, directory, cables)
        bench = make(primary)

        def say(text: str) -> None:
            progress.print(text, style="dim")

        try:
            async with cables.laid(directory, far):
                memory = await take_turns(bench, sides, settings.rounds, say, far)
        finally:
            for side in sides:
                for child in side.victims:
                    await child.kill()
    finally:
        await server.kill()
    apart = ", receivers on a processor of their own" if far else ""
    title, series = f"{bench.title}{cables}{apart}", [*bench.series, *memory]
    report = _report(settings, title, series, disk, programs, sides, compared)
    _tell(report, settings, console)


def _set_apart() -> frozenset[int]:
    """Leave the last processor to the receivers, and return it.

    The server and its clients run on the others. Raise Refused if there is only one.
    """
    *near, last = sorted(os.sched_getaffinity(0))
    if not near:
        raise Refused("--pin needs two processors, and this process has one")
    os.sched_setaffinity(0, near)
    return frozenset((last,))


def _report(
    settings: BenchSettings,
    title: str,
    series: list[Series],
    disk: Disk,
    programs: Programs,
    sides: list[Side],
    compared: tuple[Pair, ...],
) -> Report:
    return Report(
        title=title,
        disk=disk,
        cpus=len(os.sched_getaffinity(0)) + settings.pin,  # the last one is set apart
        postgresql=programs.version,
        rounds=settings.rounds,
        sides=[side.name for side in sides],
        ours=compared[0][0],
        theirs=compared[0][1],
        series=series,
        also=compared[1:],
    )


def _tell(report: Report, settings: BenchSettings, console: Console) -> None:
    console.print(report.table())
    if settings.json:
        report.save_json(settings.json)
    if settings.plot:
        report.save_plot(settings.plot)
