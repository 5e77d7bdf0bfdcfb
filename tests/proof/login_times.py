"""The time of a wrong password for a user that exists, and for one that does not, in pairs.

    python -m tests.proof.login_times --pairs 2000

Both names try the same proof, one after the other in an order of chance, at a safekeeper's port in
this process. The line of new connections lets all in. The output has the median of each name and
that of the pairs' differences. It also has the share of pairs in which the unknown name took
longer. The shares of two equal names lie within 0.5 ± 1/√pairs in 19 of 20 runs.

Exit codes: 0 the times do not betray a name, 1 they do, 2 usage.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from random import Random

from tests.safekeeper.test_password_login import LOGIN, USERS, FixedUsers
from tests.support.raw_client import RawClient
from tests.support.served_port import Served, with_port
from walkeeper_common.postgres.pgwire import startup_packet
from walkeeper_safekeeper.connections.arrivals import Arrivals
from walkeeper_safekeeper.connections.waiting_line import Allowance, LineLimits
from walkeeper_safekeeper.server import PlainPeers

KNOWN, UNKNOWN = "standby1", "standby9"
EVERYBODY = Allowance(burst=1 << 30, per_s=1e6)
WARM_UP = 50  # pairs until caches are full
DIFFERENCE_MAX = 0.05  # as a share of the median


async def refused_s(port: int, name: str) -> float:
    """Return the seconds from a client's first byte to its refusal."""
    client = await RawClient.open(port)
    begun_s = time.perf_counter()
    client.writer.write(startup_packet({**LOGIN, "user": name}))
    await client.next()
    first = b"n,,n=,r=abcdefgh"
    client.send(b"p", b"SCRAM-SHA-256\0" + len(first).to_bytes(4) + first)
    answer = await client.next()
    assert answer is not None
    nonce = answer.body[4:].split(b",")[0]
    client.send(b"p", b"c=biws," + nonce + b",p=" + b"A" * 43 + b"=")
    assert (refusal := await client.next()) is not None and refusal.tag == b"E"
    took_s = time.perf_counter() - begun_s
    await client.closed()
    client.writer.close()
    return took_s


async def measured(port: int, pairs: int, seed: int) -> list[tuple[float, float]]:
    """Return the times of the known and of the unknown name."""
    random, found = Random(seed), []
    for _ in range(WARM_UP + pairs):
        names = [KNOWN, UNKNOWN]
        random.shuffle(names)
        times = {name: await refused_s(port, name) for name in names}
        found.append((times[KNOWN], times[UNKNOWN]))
    return found[WARM_UP:]


def verdict(times: Sequence[tuple[float, float]]) -> tuple[str, bool]:
    """Return a line, and True if the difference betrays which name exists."""
    known_s, unknown_s = (statistics.median(each) for each in zip(*times, strict=True))
    difference_s = statistics.median(unknown - known for known, unknown in times)
    slower = sum(unknown > known for known, unknown in times) / len(times)
    noise = len(times) ** -0.5
    text = (
        f"known {known_s * 1e6:.0f} µs, unknown {unknown_s * 1e6:.0f} µs, median difference "
        f"{difference_s * 1e6:+.1f} µs ({difference_s / known_s:+.2%}); the unknown name took "
        f"longer in {slower:.3f} of {len(times)} pairs, and chance gives 0.5 ± {noise:.3f}"
    )
    is_large = abs(difference_s) > DIFFERENCE_MAX * known_s
    return text, is_large


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the verdict, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof.login_times")
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    found = list[tuple[float, float]]()

    async def story(served: Served) -> None:
        found.extend(await measured(served.port, asked.pairs, asked.seed))

    limits = LineLimits(EVERYBODY, EVERYBODY)
    with_port(
        story,
        None,
        users=FixedUsers(USERS),
        plain=PlainPeers(),
        arrivals=lambda audit: Arrivals(audit, limits),
    )
    text, is_told_apart = verdict(found)
    sys.stdout.write(f"{text}\n")
    return int(is_told_apart)


if __name__ == "__main__":
    sys.exit(main())
