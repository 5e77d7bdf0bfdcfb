"""`walkeeper replace`: performs the steps of replacing.py on real safekeepers. Shell.

Which question is next is decided there, from the answers alone; so this process may be killed at
any point, and the same command goes on where it was.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from walkeeper_admin.safekeeper_client import Unreachable, ask
from walkeeper_common.addresses import Address, shown_address
from walkeeper_common.errors import Refused
from walkeeper_common.quorum import Configuration
from walkeeper_common.wire.framing import Message
from walkeeper_proposer.consensus.replacing import Answers, Batch, Goal, replace_member

PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class ReplaceSettings:
    """The command's flags. `timeout_s`: without any progress; None: for ever."""

    safekeepers: tuple[Address, ...]
    cluster: str
    leaving: int
    joining: int
    address: Address
    instead: bool = False
    answer_timeout_s: float = 5.0
    timeout_s: float | None = None


async def replace(settings: ReplaceSettings, tell: Callable[[str], None]) -> Configuration:
    """The members in the end. `tell` gets a line when there is news."""
    addresses = tuple(dict.fromkeys((*settings.safekeepers, settings.address)))
    goal = Goal(
        cluster=settings.cluster,
        leaving=settings.leaving,
        joining=settings.joining,
        address=shown_address(settings.address),
        at=addresses.index(settings.address),
        instead=settings.instead,
    )
    steps = replace_member(goal, range(len(addresses)), lambda: os.urandom(16))
    news = _News(tell, settings.timeout_s)
    batch = next(steps)
    silent: list[str] = []
    while True:
        answers: Answers = {}
        if batch.requests:
            answers, silent = await _ask_all(addresses, batch.requests, settings.answer_timeout_s)
        else:
            news.waits(batch, silent)
            await asyncio.sleep(PAUSE_S)
        try:
            batch = steps.send(answers)
        except StopIteration as done:
            configuration = done.value
            assert isinstance(configuration, Configuration), f"{configuration=}"
            return configuration


async def _ask_all(
    addresses: tuple[Address, ...], requests: Mapping[int, Message], timeout_s: float
) -> tuple[dict[int, Message], list[str]]:
    """Of those that answer in time; nothing is assumed of the others, but why they do not."""

    async def one(place: int, question: Message) -> tuple[int, Message | Unreachable]:
        try:
            return place, await ask(addresses[place], question, timeout_s)
        except Unreachable as error:
            return place, error

    said = await asyncio.gather(*(one(place, q) for place, q in requests.items()))
    silent = [str(why) for _, why in said if isinstance(why, Unreachable)]
    return {place: it for place, it in said if not isinstance(it, Unreachable)}, silent


class _News:
    """Says what is waited for, once, and how far the filling is, every 5 s."""

    EVERY_S = 5.0

    def __init__(self, tell: Callable[[str], None], timeout_s: float | None) -> None:
        self._tell, self._timeout_s = tell, timeout_s
        self._said: tuple[str, int | None] = ("", None)
        self._moved_s = self._told_s = asyncio.get_running_loop().time()

    def waits(self, batch: Batch, silent: Sequence[str]) -> None:
        """Refused when nothing has moved for too long. `silent`: why who was asked last does not
        answer."""
        now_s = asyncio.get_running_loop().time()
        is_new = batch.text != self._said[0]
        if (batch.text, batch.to_go) != self._said:
            self._moved_s = now_s
        if is_new or (batch.to_go is not None and now_s - self._told_s >= self.EVERY_S):
            to_go = "" if batch.to_go is None else f": {batch.to_go:,} bytes to go"
            self._tell(batch.text + to_go)
            self._told_s = now_s
        self._said = (batch.text, batch.to_go)
        if self._timeout_s is not None and now_s - self._moved_s > self._timeout_s:
            why = f" ({'; '.join(silent)})" if silent else ""
            raise Refused(
                f"no progress for {self._timeout_s:g} s: {batch.text}{why}; the same command "
                "resumes the replacement"
            )
