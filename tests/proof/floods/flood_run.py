"""A primary, three safekeepers, their load, and an attacker's process beside them.

The safekeepers offer TLS and have a users file. Proposer and load speak plain on loopback, as the
attacker may. The attacker's process gets the processors' idle time alone, as if it had a machine of
its own. So the figures show what its visits cost the safekeepers.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import statistics
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.proof.floods.attacks import Attack
from tests.support.folders import ROOT
from tests.support.passwords import users_file_of
from walkeeper_cli.certs.local_files import local_tls
from walkeeper_common.addresses import shown_address
from walkeeper_lab.bench.bench_server import BenchServer
from walkeeper_lab.bench.sides import Safekeepers
from walkeeper_lab.local.child_process import walkeeper_command
from walkeeper_lab.local.local_tls import LocalTls
from walkeeper_lab.local.postgresql import PostgreSQL
from walkeeper_lab.local.programs import find_programs
from walkeeper_lab.local.running import prepare

READ_AT_ONCE = ROOT / "tests/proof/floods/read_at_once.py"
CLIENTS = 8
SCALE = 5
SETTLED_S = 2.0  # from the attacker's start to the window, and from its end to the next one
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class OfferedTls(LocalTls):
    """TLS files of safekeepers that take plain connections on loopback as well."""

    def of_safekeeper(self, number: int) -> Sequence[str]:
        return ("--tls", self.safekeepers[number])

    def of_proposer(self) -> Sequence[str]:
        return ()


@dataclass(frozen=True, slots=True)
class Flooded:
    """Commits a second without and with an attack, and what the safekeepers' memory grew by."""

    attack: Attack
    visits_s: float
    attacker_cpu: float  # processors in use, 1.0 is one of them all the time
    without_tps: float
    with_tps: float
    ratio: float
    grown_mb: float

    def row(self) -> str:
        """Return the row of a table."""
        return (
            f"| {self.attack.about} | {self.visits_s:.0f} | {self.attacker_cpu:.2f} "
            f"| {self.without_tps:.0f} | {self.with_tps:.0f} | {self.ratio:.2f} "
            f"| {self.grown_mb:.1f} MB |"
        )


class Besieged:
    """A log under load whose safekeepers are attacked."""

    def __init__(self, primary: BenchServer, safekeepers: Safekeepers) -> None:
        self._primary, self._safekeepers = primary, safekeepers

    @classmethod
    @contextlib.asynccontextmanager
    async def made(cls, directory: Path, *, reads_at_once: bool = False) -> AsyncIterator[Besieged]:
        """Make all parts below the directory, and stop them at the end.

        With `reads_at_once`, the safekeepers are those of read_at_once.py.
        """
        prepare(directory)
        programs = await asyncio.to_thread(find_programs, None, directory)
        server = PostgreSQL(programs, directory, "primary", secrets.token_hex(16))
        primary = BenchServer(server, SCALE)
        made = local_tls(directory / "tls")
        tls = OfferedTls(made.safekeepers, made.proposer, made.admin, made.replica)
        users = users_file_of(directory / "users", standby1="password of standby1")
        try:
            await primary.make()
            safekeepers = Safekeepers(server, directory, options=("--users", users), tls=tls)
            if reads_at_once:
                for child in safekeepers.victims:
                    words = child.command[len(walkeeper_command()) :]
                    child.command = (sys.executable, str(READ_AT_ONCE), *words)
            async with safekeepers.attached():
                yield cls(primary, safekeepers)
        finally:
            await server.kill()

    def memory_bytes(self) -> int:
        """Return the resident memory of the largest safekeeper."""
        return max(_resident_bytes(child.pid) for child in self._safekeepers.victims)

    async def flood(self, attack: Attack, seconds: int, rounds: int, seed: int) -> Flooded:
        """Measure windows without and with the attack in turn.

        The ratio is the median of the rounds' ratios. A round compares its window with the mean of
        the windows before and after it.
        """
        calm = [await self._window(seconds)]
        stormy: list[float] = []
        attackers: list[tuple[float, float]] = []
        before_bytes = self.memory_bytes()
        for number in range(rounds):
            async with self._attacked(attack, seed + number, attackers.append):
                stormy.append(await self._window(seconds))
            calm.append(await self._window(seconds))
        visits, cpu_s = zip(*attackers, strict=True)
        pairs = zip(calm, calm[1:], stormy, strict=False)
        return Flooded(
            attack,
            statistics.mean(visits),
            statistics.mean(cpu_s),
            statistics.median(calm),
            statistics.median(stormy),
            statistics.median(2 * tps / (before + after) for before, after, tps in pairs),
            (self.memory_bytes() - before_bytes) / 1e6,
        )

    async def _window(self, seconds: int) -> float:
        await asyncio.sleep(SETTLED_S)
        return (await self._primary.transactions(CLIENTS, seconds)).tps

    @contextlib.asynccontextmanager
    async def _attacked(
        self, attack: Attack, seed: int, told: Callable[[tuple[float, float]], None]
    ) -> AsyncIterator[None]:
        """Run the attacker's process meanwhile, and tell its visits and CPU seconds a second."""
        clock = asyncio.get_running_loop().time
        process = await self._attacker("--attack", attack.name, "--seed", str(seed))
        begun_s = clock()
        try:
            yield
            process.send_signal(signal.SIGTERM)
            said, _ = await process.communicate()
            lasted_s = clock() - begun_s
            visits, cpu_s = said.split()[-2:]
            told((int(visits) / lasted_s, float(cpu_s) / lasted_s))
        finally:
            if process.returncode is None:
                process.kill()

    async def inputs(self, count: int, seed: int, tell: Callable[[int], None]) -> None:
        """Send so many inputs by 1,000 connections at a time, and tell their number meanwhile."""
        options = ("--attack", "mutated", "--seed", str(seed), "--inputs", str(count))
        process, paid = await self._attacker(*options), 0
        assert process.stdout is not None
        try:
            async for line in process.stdout:
                paid = int(line.split()[0])
                if paid < count:
                    tell(paid)
            await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
        if process.returncode or paid != count:
            raise RuntimeError(f"the attacker ended with {process.returncode} after {paid}")

    async def _attacker(self, *options: str) -> asyncio.subprocess.Process:
        addresses = ",".join(map(shown_address, self._safekeepers.addresses))
        command = (sys.executable, "-m", "tests.proof.floods", "--at", addresses, *options)
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, cwd=ROOT)
        assert process.stdout is not None
        await process.stdout.readline()  # it has begun
        return process


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
