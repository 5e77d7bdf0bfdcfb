"""`bench failover`: the longest gap between commits when one of three receivers is killed."""

from __future__ import annotations

import asyncio
import contextlib

from walkeeper_lab.bench.bench_server import BenchServer
from walkeeper_lab.bench.pairs import Series
from walkeeper_lab.bench.rounds import Bench, Say
from walkeeper_lab.bench.sides import Side
from walkeeper_lab.demo.load import TABLE, Load

BEFORE_S, AFTER_S = 2.0, 4.0
AT_ONCE_S = 0.5
"""The gap that a kill makes is in this time after it. Later ones have other reasons."""
DROP = "DROP TABLE IF EXISTS demo"


class Failover(Bench):
    """Eight writers; one receiver is killed (SIGKILL) under load, two are left.

    Each round kills another one, as receivers differ: one may get its WAL in bunches.
    """

    title = "one of three receivers is killed, 8 writers"

    def __init__(self, server: BenchServer) -> None:
        self._server = server
        self._at_once = Series("longest gap in the 0.5 s after the kill", "ms", more=False)
        self._gap = Series("longest gap in the 4 s after it", "ms", more=False)
        self._usual = Series("median commit before that", "ms", more=False)

    @property
    def series(self) -> list[Series]:
        return [self._at_once, self._gap, self._usual]

    async def measure(self, side: Side, say: Say) -> None:
        server = self._server.server
        await server.value(DROP)
        await server.value(TABLE)
        load = Load(server)
        writing = asyncio.create_task(load.run(), name="load")
        try:
            await asyncio.sleep(BEFORE_S)
            usual = sorted(e.returned_s - e.begun_s for e in load.acknowledged)
            killed_s = load.now_s()
            if side.victims:
                await side.victims[self._rounds(side) % len(side.victims)].kill()
            await asyncio.sleep(AFTER_S)
            at_once_s = load.longest_gap_s(killed_s, killed_s + AT_ONCE_S)
            gap_s = load.longest_gap_s(killed_s, load.now_s())
        finally:
            writing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await writing
        self._at_once.add(side.name, 1000 * at_once_s)
        self._gap.add(side.name, 1000 * gap_s)
        self._usual.add(side.name, 1000 * usual[len(usual) // 2])
        say(f"{side.name}: {1000 * at_once_s:.0f} ms, later {1000 * gap_s:.0f} ms")

    def _rounds(self, side: Side) -> int:
        """Return the number of rounds in which this side was measured."""
        return len(self._gap.values.get(side.name, []))
