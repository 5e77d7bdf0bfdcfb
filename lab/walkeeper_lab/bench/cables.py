"""The way from the primary's machine to the receivers': nothing, or delay lines. A shell.

cables = Cables(round_trip_s)
port = cables.to(port)                  a port through which `port` is that far away
async with cables.laid(directory):      the delay lines run
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Set
from pathlib import Path

from walkeeper_lab.local.child_process import ChildProcess
from walkeeper_lab.local.tcp_ports import free_port

READY_S = 30.0


class Cables:
    """One delay line for each call of `to`. With a round trip of 0 there are none."""

    def __init__(self, round_trip_s: float = 0.0) -> None:
        self.round_trip_s = round_trip_s
        self._ports: list[tuple[int, int]] = []

    def __str__(self) -> str:
        """Return what a report says of the distance, or "" if there is none."""
        return f", receivers {1000 * self.round_trip_s:g} ms away" if self.round_trip_s else ""

    def to(self, port: int) -> int:
        """Return the port of a new delay line to `port`, or `port` itself without a distance."""
        if not self.round_trip_s:
            return port
        near = free_port()
        self._ports.append((near, port))
        return near

    @contextlib.asynccontextmanager
    async def laid(
        self, directory: Path, processors: Set[int] = frozenset()
    ) -> AsyncIterator[None]:
        """Run the delay lines, on `processors` if it is not empty; raise Refused if one fails."""
        lines = [self._line(directory, *ports) for ports in self._ports]
        try:
            for line in lines:
                await line.start(READY_S)
                if processors:
                    line.run_on(processors)
            yield
        finally:
            for line in lines:
                await line.stop()

    def _line(self, directory: Path, near: int, port: int) -> ChildProcess:
        name = f"delay line {near}"
        words = (str(near), str(port), str(self.round_trip_s / 2))
        command = (sys.executable, "-P", "-m", "walkeeper_lab.bench.delay_line", *words)
        return ChildProcess(name, command, directory / "logs" / f"delay_line{near}.log")
