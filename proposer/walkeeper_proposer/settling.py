"""`settle` and `logs close`: one election without a primary (docs/steps.md#settle). Shell.

The first try fences the current leader. After a deposition `settle` tries again as a new proposer,
but then waits for a live one like any proposer. So two `settle`s at once end at one LSN, and do not
fence a proposer that was started meanwhile. After a change of members `settle` tries again at once:
`replace` goes on as soon as an election has brought the newcomer to the end.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import random
from collections.abc import Callable, Sequence

from walkeeper_common.addresses import Address
from walkeeper_common.errors import Refused
from walkeeper_common.lsn import Lsn
from walkeeper_common.operator_text.severity import Severity
from walkeeper_common.operator_text.zones import shown_acks, shown_votes
from walkeeper_common.quorum import member_id
from walkeeper_common.shell.log_lines.operator_log import log_note
from walkeeper_common.wire.messages import Feedback
from walkeeper_fastpath.ports import FastStream
from walkeeper_proposer.consensus.campaign import Campaign, Purpose
from walkeeper_proposer.consensus.proposer import Proposer
from walkeeper_proposer.consensus.proposer_events import Outcome, Settled, Stop, Tick
from walkeeper_proposer.links import SafekeeperLinks
from walkeeper_proposer.proposer_driver import Driver

logger = logging.getLogger("walkeeper.settle")

HEARTBEAT_S = 1.0
LINGER_S = 10.0
TRIES_MAX = 5


class _NoPrimary:
    """The port of a primary that `settle` does not have."""

    def identify(self) -> None:
        raise AssertionError("settle asks no primary")

    def read(self, begin_lsn: Lsn, end_lsn: Lsn, timeline: int) -> None:
        raise AssertionError("settle reads no primary")

    def stream(self, start_lsn: Lsn, timeline: int) -> None:
        raise AssertionError("settle streams from no primary")

    def pause(self) -> None:
        raise AssertionError("settle streams from no primary")

    def resume(self) -> None:
        raise AssertionError("settle streams from no primary")

    def report(self, commit_lsn: Lsn, feedback: Sequence[Feedback]) -> None:
        raise AssertionError("settle reports to no primary")

    def stream_first(self, stream: FastStream) -> None:
        raise AssertionError("settle has no fast path")

    def retain(self, begin_lsn: Lsn) -> None:
        raise AssertionError("settle has no primary that keeps WAL")


class _Election:
    """One try; the driver's Surroundings."""

    def __init__(self) -> None:
        self.stop: asyncio.Future[Stop] = asyncio.get_running_loop().create_future()
        self.missing = ""

    def after(self, delay_s: float, what: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(delay_s, what)

    def uniform(self, low: float, high: float) -> float:
        return random.uniform(low, high)

    def note(self, text: str, facts: Sequence[tuple[str, object]], severity: Severity, /) -> None:
        log_note(logger, text, facts, severity)

    def stopped(self, stop: Stop) -> None:
        self.stop.set_result(stop)


async def settle(
    addresses: Sequence[Address],
    cluster: str,
    *,
    seal: bool,
    timeout_s: float,
    linger_s: float = LINGER_S,
) -> Settled:
    """Settle the log of `cluster`; return its end.

    Raise Refused if there is no quorum in time, or if another proposer leads. `linger_s`: how long
    to wait for reachable members that lag, once a quorum has all. The wait for unreachable members
    is a second at most.
    """
    purpose = Purpose.SEAL if seal else Purpose.SETTLE
    return await _elect(addresses, cluster, purpose, timeout_s=timeout_s, linger_s=linger_s)


async def close(
    addresses: Sequence[Address], cluster: str, *, timeout_s: float, linger_s: float = LINGER_S
) -> Settled:
    """Close the log of `cluster` for good (M7); return its end. The rest is as for `settle`."""
    end = await _elect(addresses, cluster, Purpose.CLOSE, timeout_s=timeout_s, linger_s=linger_s)
    assert end.closed, f"{end=}"
    return end


async def _elect(
    addresses: Sequence[Address],
    cluster: str,
    purpose: Purpose,
    *,
    timeout_s: float,
    linger_s: float,
) -> Settled:
    linger_ticks = min(math.ceil(linger_s / HEARTBEAT_S), int(timeout_s / HEARTBEAT_S / 2))
    did = "closed" if purpose is Purpose.CLOSE else "settled"
    election, take_over = _Election(), True
    try:
        async with asyncio.timeout(timeout_s):
            for attempt in range(TRIES_MAX):
                campaign = Campaign(
                    cluster=cluster,
                    proposer_id=os.urandom(16),
                    links=len(addresses),
                    purpose=purpose,
                    application_name="logs close" if purpose is Purpose.CLOSE else "settle",
                    take_over=take_over,
                    linger_ticks=linger_ticks,
                )
                election = _Election()
                stop = await _try(addresses, Proposer(campaign), election)
                if stop.settled is not None:
                    return stop.settled
                if stop.outcome not in (Outcome.DEPOSED, Outcome.NEW_ELECTION):
                    raise Refused(stop.text)
                take_over = stop.outcome is Outcome.NEW_ELECTION
                logger.info("%s; trying again", stop.text)
                await asyncio.sleep(random.uniform(0.1, 0.5 * 2**attempt))
    except TimeoutError:
        raise Refused(
            f"cluster {cluster!r} was not {did} within {timeout_s:g} s: {election.missing}"
        ) from None
    raise Refused(f"not {did} in {TRIES_MAX} elections, the last of which ended so: {stop.text}")


def who_is_missing(core: Proposer) -> str:
    """Return the text for the members that this election lacks.

    A vote quorum knows the end of the log. An ack quorum, which may be greater, has to keep it."""
    configuration = core.configuration
    if configuration is None:
        return "no safekeeper answered with a log; see `walkeeper status`"
    elected = core.leader is not None
    here = [member.name for member in core.members if member.attached or not elected]
    missing = ", ".join(str(member_id(m)) for m in configuration.everyone if m not in here)
    if not elected:
        votes = (shown_votes(each) for each in configuration.sets)
        needed = f"a vote quorum ({' and '.join(votes)})"
        return f"it needs {needed}; missing: safekeeper {missing or 'none'}; see `walkeeper status`"
    if configuration.commits(here):
        return "an ack quorum has answered and was not done in time; try a longer --timeout"
    acks = " and ".join(map(shown_acks, configuration.sets))
    return (
        f"a vote quorum has elected it, but an ack quorum ({acks}) has to make the "
        f"end of the log durable; missing: safekeeper {missing}. Nothing is lost on those that "
        "answer: start more members with their disks, elsewhere if need be, and settle again"
    )


async def _try(addresses: Sequence[Address], core: Proposer, election: _Election) -> Stop:
    links = SafekeeperLinks(addresses)
    driver = Driver(core, links=links, primary=_NoPrimary(), around=election)
    running = links.run(driver.post, driver.acknowledge_at_once)
    connecting = asyncio.create_task(running, name="links")
    try:
        while not election.stop.done():
            await asyncio.wait([election.stop], timeout=HEARTBEAT_S)
            driver.post(Tick())
        return election.stop.result()
    finally:
        election.missing = who_is_missing(core)  # before the links are gone
        connecting.cancel()
        await asyncio.wait([connecting])
