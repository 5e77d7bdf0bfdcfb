"""A benchmark's report: ratios within a round, the disk it ran on, table, JSON and plot."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
from rich.console import Console

from walkeeper_common.errors import Refused
from walkeeper_lab.bench import bench_run, disk, rounds
from walkeeper_lab.bench.bench_report import Report, check_outputs
from walkeeper_lab.bench.commit import cpu_s
from walkeeper_lab.bench.disk import Disk, disk_of, flushes, mount_above
from walkeeper_lab.bench.pairs import Series, order_of
from walkeeper_lab.bench.rounds import FORGOTTEN_S, Say, take_turns
from walkeeper_lab.bench.sides import Nobody, Side, processes_of
from walkeeper_lab.local.child_process import ChildProcess

SIDES = ("no replication", "pg_receivewal", "walkeeper")


def series_of(ours: list[float], theirs: list[float], *, more: bool = True) -> Series:
    series = Series("8 clients", "TPS", more)
    for our, their in zip(ours, theirs, strict=True):
        series.add("walkeeper", our)
        series.add("pg_receivewal", their)
    return series


def report_of(*series: Series) -> Report:
    made_up = Disk("ext4", "/dev/sda1", 0.25)
    return Report("pgbench", made_up, 2, "15.18", 3, SIDES, "walkeeper", "pg_receivewal", series)


def test_the_ratio_is_taken_within_each_round() -> None:
    """A machine that is ten times as fast in one round does not make a side ten times as fast."""
    series = series_of([100, 1000, 110], [50, 500, 100])
    assert series.ratio("walkeeper", "pg_receivewal") == 2
    assert series.median("walkeeper") == 110


def test_more_than_one_is_better_also_where_less_is_better() -> None:
    latency = series_of([2, 2, 2], [3, 3, 3], more=False)
    assert latency.ratio("walkeeper", "pg_receivewal") == 1.5


def test_sides_take_turns_in_both_orders() -> None:
    assert order_of(SIDES, 0) == list(SIDES) == order_of(SIDES, 2)
    assert order_of(SIDES, 1) == list(reversed(SIDES))


class Idle:
    """A side with two receivers, of which one was killed."""

    name = "walkeeper"
    proposer = None

    def __init__(self, folder: Path) -> None:
        self.victims = [
            ChildProcess(name, ("sleep", "60"), folder / f"{name}.log") for name in ("one", "two")
        ]

    @contextlib.asynccontextmanager
    async def attached(self) -> AsyncIterator[None]:
        for victim in self.victims:
            await victim.launch()
        try:
            await self.victims[0].kill()
            yield
        finally:
            await self.victims[1].kill()


class Nothing:
    """A benchmark that measures nothing."""

    title = "nothing"
    series: ClassVar[list[Series]] = []

    async def measure(self, side: Side, say: Say) -> None:
        say(side.name)


class Pinned(Nothing):
    """A benchmark that notes the processors of the receivers that run."""

    def __init__(self) -> None:
        self.seen = list[set[int]]()

    async def measure(self, side: Side, say: Say) -> None:
        self.seen += [os.sched_getaffinity(child.pid) for child in processes_of(side)]


def test_the_memory_of_the_receivers_that_are_left_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides: list[Side] = [Nobody(), Idle(tmp_path)]
    rests = list[float]()

    async def rest(seconds: float) -> None:
        rests.append(seconds)

    clock = SimpleNamespace(sleep=rest, to_thread=asyncio.to_thread)
    monkeypatch.setattr(rounds, "asyncio", clock)
    idle, most = asyncio.run(take_turns(Nothing(), sides, 2, lambda _: None))
    assert rests == 4 * [FORGOTTEN_S], "each side of each round begins after a rest"
    assert idle.values.keys() == most.values.keys() == {"walkeeper"}
    assert len(idle.values["walkeeper"]) == 2
    assert 0 < idle.median("walkeeper") <= most.median("walkeeper") < 20


def test_pinned_receivers_run_on_the_last_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = max(os.sched_getaffinity(0))
    monkeypatch.setattr(rounds, "FORGOTTEN_S", 0.0)
    bench = Pinned()
    asyncio.run(take_turns(bench, [Idle(tmp_path)], 1, lambda _: None, frozenset((last,))))
    assert bench.seen == [{last}]


def test_the_server_leaves_the_last_processor_and_needs_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    processors, kept = {0, 3, 5}, list[list[int]]()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: processors)
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, those: kept.append(those))
    assert bench_run._set_apart() == {5} and kept == [[0, 3]]
    processors = {5}
    with pytest.raises(Refused, match="--pin needs two processors"):
        bench_run._set_apart()


def test_the_cpu_of_a_child_counts_its_threads(tmp_path: Path) -> None:
    work = (
        "import threading, time; t = threading.Thread(target=sum, args=(range(10**9),)); t.start();"
    )
    side = Idle(tmp_path)
    side.victims = [
        ChildProcess(
            "busy", (sys.executable, "-c", f"{work} t.join(); time.sleep(60)"), tmp_path / "log"
        )
    ]

    async def spent_s() -> float:
        await side.victims[0].launch()
        try:
            while (spent := cpu_s(side)[0]) < 0.1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            return spent
        finally:
            await side.victims[0].kill()

    before_s = time.monotonic()
    assert 0.1 <= asyncio.run(spent_s()) < 2 * (time.monotonic() - before_s)
    assert cpu_s(Nobody()) == (0.0, 0.0)


def test_a_disk_in_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_mount_of", lambda _: ("tmpfs", "tmpfs"))
    with pytest.raises(Refused, match=r"is on tmpfs, where fdatasync does nothing.*--dir"):
        disk_of(tmp_path)


def test_the_mount_is_the_one_with_the_longest_path_above() -> None:
    assert disk._mount_of(Path("/proc/self"))[0] == "proc"


def test_a_disk_is_measured_and_nothing_stays_there(tmp_path: Path) -> None:
    try:
        found = disk_of(tmp_path)
    except Refused as refused:
        assert "tmpfs" in str(refused)
        return
    assert found.fdatasync_ms > 0 and found.file_system and not list(tmp_path.iterdir())
    flushed = flushes(tmp_path)
    assert flushed is None or flushed > 0


def test_the_mount_that_is_nearest_above_counts_and_there_may_be_none() -> None:
    lines = (
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw",
        "23 22 8:2 / /srv/my\\040disk rw shared:1 - xfs /dev/sdb rw",
    )
    on_disk = Path("/srv/my disk/bench")
    assert mount_above(on_disk, "\n".join(lines)) == ("xfs", "/dev/sdb")
    assert mount_above(Path("/srv"), "\n".join(lines)) == ("ext4", "/dev/sda1")
    assert mount_above(Path("/srv"), lines[1]) == ("unknown file system", "unknown device")


def test_the_table_tells_figures_and_ratio_and_what_was_not_measured() -> None:
    console = Console(width=140, record=True, file=StringIO())
    console.print(report_of(series_of([100, 120, 110], [50, 60, 55])).table())
    text = console.export_text()
    assert "ext4 on /dev/sda1, fdatasync 0.25 ms" in text
    row = next(line for line in text.splitlines() if "8 clients" in line)
    assert [cell.strip() for cell in row.split("│")[2:-1]] == ["TPS", "-", "55", "110", "2.00"]


def test_json_and_plot_hold_every_round(tmp_path: Path) -> None:
    report = report_of(series_of([100, 120, 110], [50, 60, 55]))
    report.save_json(str(tmp_path / "figures.json"))
    document = json.loads((tmp_path / "figures.json").read_text())
    assert document["figures"][0]["values"]["walkeeper"] == [100, 120, 110]
    assert document["figures"][0]["ratio"] == "2.00"
    report.save_plot(str(tmp_path / "figures.svg"))
    assert "</svg>" in (tmp_path / "figures.svg").read_text()
    with pytest.raises(Refused, match=r"--json: .*missing"):
        report.save_json(str(tmp_path / "missing" / "figures.json"))
    with pytest.raises(Refused, match=r"--plot: "):
        report.save_plot(str(tmp_path / "figures.nothing"))


def test_figures_that_could_not_be_kept_are_not_measured(tmp_path: Path) -> None:
    check_outputs(str(tmp_path / "figures.json"), str(tmp_path / "figures.svg"))
    check_outputs("figures.json", None)
    with pytest.raises(Refused, match=r"--json: .*missing"):
        check_outputs(str(tmp_path / "missing" / "figures.json"), None)
    with pytest.raises(Refused, match=r"--plot: .*figures.nothing is none of .*svg"):
        check_outputs(None, str(tmp_path / "figures.nothing"))
