"""Performs the steps of a change of members on real safekeepers. An asyncio shell.

    await perform(steps, addresses, limits, tell)   the configuration that the steps return

The steps (consensus/members/changing.py) choose the next question from the answers alone. So this
process may be killed at any point. The same steps, begun again, go on where it was.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from walkeeper_common.addresses import Address
from walkeeper_common.errors import Refused, Unreachable
from walkeeper_common.quorum import Configuration
from walkeeper_common.shell.safekeeper_links.safekeeper_client import ask
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.member_change import MembersQuery
from walkeeper_proposer.closed_elections import ClosedElections
from walkeeper_proposer.consensus.members.change_progress import ChangeProgress
from walkeeper_proposer.consensus.members.deciding import Answers, Batch, Steps

PAUSE_S = 0.5
ANSWER_S_MIN = 0.5  # for an answer although --timeout is nearly over


@dataclass(frozen=True, slots=True)
class Limits:
    """`timeout_s` is how long the command goes on without progress, or None for no limit."""

    answer_timeout_s: float = 5.0
    timeout_s: float | None = None


def draw() -> bytes:
    """Return random bytes that no other round of the register has."""
    return os.urandom(16)


async def perform(
    steps: Steps, addresses: tuple[Address, ...], limits: Limits, tell: Callable[[str], None]
) -> Configuration:
    """Ask these safekeepers what the steps want, and return the steps' result. Raise Refused."""
    elections = ClosedElections(addresses)
    try:
        return await _perform(steps, addresses, _News(tell, limits.timeout_s), limits, elections)
    finally:
        await elections.end()


async def _perform(
    steps: Steps,
    addresses: tuple[Address, ...],
    news: _News,
    limits: Limits,
    elections: ClosedElections,
) -> Configuration:
    batch = next(steps)
    while True:
        answers: Answers = {}
        if batch.requests:
            answer_s = news.answer_s(limits.answer_timeout_s)
            answers, news.silent = await _ask_all(addresses, batch.requests, answer_s)
        else:
            news.waits(batch)
            await asyncio.sleep(PAUSE_S)
        for question in batch.requests.values():
            if isinstance(question, MembersQuery):
                elections.hold_if_closed(question.cluster, answers)
        news.give_up_if_late()
        try:
            batch = steps.send(answers)
        except StopIteration as done:
            configuration = done.value
            assert isinstance(configuration, Configuration), f"{configuration=}"
            return configuration


async def _ask_all(
    addresses: tuple[Address, ...], requests: Mapping[int, Message], timeout_s: float
) -> tuple[dict[int, Message], list[str]]:
    """Return the answers that came in time, and why the others do not answer."""

    async def one(place: int, question: Message) -> tuple[int, Message | Unreachable]:
        try:
            return place, await ask(addresses[place], question, timeout_s)
        except Unreachable as error:
            return place, error

    said = await asyncio.gather(*(one(place, q) for place, q in requests.items()))
    silent = [str(why) for _, why in said if isinstance(why, Unreachable)]
    return {place: it for place, it in said if not isinstance(it, Unreachable)}, silent


class _News:
    """Tell what the command waits for, once, and how far the filling is, every 5 s."""

    EVERY_S = 5.0

    def __init__(self, tell: Callable[[str], None], timeout_s: float | None) -> None:
        self._tell, self._timeout_s = tell, timeout_s
        self._waits = Batch(text="the safekeepers do not answer in time")
        self._progress = ChangeProgress()
        self._moved_s = self._shown_s = asyncio.get_running_loop().time()
        self.silent: list[str] = []  # the reasons of those without an answer to the last request

    def answer_s(self, most_s: float) -> float:
        """Return how long to wait for an answer, so that --timeout holds."""
        if self._timeout_s is None:
            return most_s
        left_s = self._moved_s + self._timeout_s - asyncio.get_running_loop().time()
        return min(most_s, max(left_s, ANSWER_S_MIN))

    def waits(self, batch: Batch) -> None:
        """Record what the command waits for, and tell it if that is news."""
        now_s = asyncio.get_running_loop().time()
        is_new = batch.text != self._waits.text
        if self._progress.is_in(batch):
            self._moved_s = now_s
        if is_new or (batch.to_go is not None and now_s - self._shown_s >= self.EVERY_S):
            to_go = "" if batch.to_go is None else f": {batch.to_go:,} bytes to go"
            self._tell(batch.text + to_go)
            self._shown_s = now_s
        self._waits = batch

    def give_up_if_late(self) -> None:
        """Raise Refused, with the members and how to go on, if nothing moves for too long."""
        now_s = asyncio.get_running_loop().time()
        if self._timeout_s is None or now_s - self._moved_s <= self._timeout_s:
            return
        why = f" ({'; '.join(self.silent)})" if self.silent else ""
        raise Refused(
            f"no progress for {self._timeout_s:g} s: {self._waits.text}{why}; "
            f"{self._progress.ways_on()}"
        )
