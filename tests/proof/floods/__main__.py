"""Floods of connections, and their price in commits a second and in the safekeepers' memory.

    python -m tests.proof.floods                      each flood, in rounds; 10 quiet minutes
    python -m tests.proof.floods --only passwords     floods whose name matches
    python -m tests.proof.floods --inputs 1000000     memory: so many inputs before any login
    python -m tests.proof.floods --list

The peers have no certificate and no password. A ratio compares commits a second with the flood and
without it. The machine must do nothing else meanwhile. The attacker shares its processors: the
control shows what that alone costs. `--inputs` sends beginnings of conversations with changed
bytes, by 1,000 connections at a time. Its safekeepers read each of them at once, since nearly all
would leave the line of new connections unread. A line each 30 s tells the rate and the memory.

Exit codes: 0 the memory stayed within its bound, 1 it did not, 2 usage.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.proof.floods.attacks import ATTACKS, CONTROL, MUTATED, Attack, Paid, besiege
from tests.proof.floods.flood_run import Besieged
from walkeeper_common.addresses import parse_address
from walkeeper_lab.local.running import forget_surroundings

FLOODS = (CONTROL, *ATTACKS)
GROWTH_MB_MAX = 32
WARM_UP = 20_000  # inputs until caches and the allocator's arenas have their size
PROGRESS_S = 30.0
HEAD = """\
| flood | visits a second | attacker's processors | commits a second without | with | ratio \
| memory grew by |
|---|---|---|---|---|---|---|"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the floods that the command line names; return the exit code."""
    asked = _arguments(arguments)
    if asked.at:
        return asyncio.run(_attack(asked))
    chosen = [each for each in FLOODS if re.search(asked.only or "", each.name)]
    if asked.list or not chosen:
        for each in FLOODS:
            _say(f"{each.name:<12} {each.about}")
        return 0 if asked.list else 2
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    forget_surroundings()
    directory = Path(tempfile.mkdtemp(prefix="walkeeper_floods_"))
    try:
        return asyncio.run(_run(asked, chosen, directory))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def _run(asked: argparse.Namespace, chosen: Sequence[Attack], directory: Path) -> int:
    if asked.inputs:
        async with Besieged.made(directory, reads_at_once=True) as besieged:
            return await _memory(besieged, asked.inputs, asked.seed)
    async with Besieged.made(directory) as besieged:
        _say(HEAD)
        grown = []
        for attack in chosen:
            flooded = await besieged.flood(attack, asked.seconds, asked.rounds, asked.seed)
            _say(flooded.row())
            grown.append(flooded.grown_mb)
        return int(max(grown) > GROWTH_MB_MAX)


async def _memory(besieged: Besieged, count: int, seed: int) -> int:
    begun_s = time.monotonic()

    def tell(paid: int) -> None:
        rate, mb = paid / (time.monotonic() - begun_s), besieged.memory_bytes() / 1e6
        _say(f"{paid} of {count} inputs, {rate:.0f} a second; a safekeeper has {mb:.0f} MB")

    await besieged.inputs(WARM_UP, seed, lambda paid: None)
    before, begun_s = besieged.memory_bytes(), time.monotonic()
    await besieged.inputs(count, seed + 1, tell)
    tell(count)
    grown_mb = (besieged.memory_bytes() - before) / 1e6
    _say(f"{count} inputs, {MUTATED.at_once} connections at a time: a safekeeper's memory")
    _say(f"grew from {before / 1e6:.0f} MB by {grown_mb:.1f} MB; the bound is {GROWTH_MB_MAX} MB")
    return int(grown_mb > GROWTH_MB_MAX)


async def _attack(asked: argparse.Namespace) -> int:
    """Print `begun`, visit until SIGTERM, and print the visits and the CPU seconds.

    Print the number of visits so far every 30 s.
    """
    if asked.inputs is None:  # memory needs no fair share, and has to come to an end
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    attack = next(each for each in (*FLOODS, MUTATED) if each.name == asked.attack)
    addresses = [parse_address(each) for each in asked.at.split(",")]
    paid = Paid()
    work = asyncio.create_task(besiege(attack, addresses, asked.seed, asked.inputs, paid))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)
    _say("begun")
    begun_s = time.process_time()
    while not (await asyncio.wait([work], timeout=PROGRESS_S))[0]:
        _say(str(paid.visits))
    await work
    _say(f"{paid.visits} {time.process_time() - begun_s}")
    return 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.proof.floods",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", metavar="REGEX", help="floods whose name matches")
    parser.add_argument("--seconds", type=int, default=10, help="of each window (10)")
    parser.add_argument("--rounds", type=int, default=3, help="windows with each flood (3)")
    parser.add_argument("--inputs", type=int, help="measure memory over so many inputs instead")
    parser.add_argument("--seed", type=int, default=0, help="of the attacker's dice (0)")
    parser.add_argument("--list", action="store_true", help="name the floods")
    parser.add_argument("--at", metavar="ADDRESSES", help="be the attacker of these safekeepers")
    parser.add_argument("--attack", metavar="NAME", help="the attacker's flood, with --at")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
