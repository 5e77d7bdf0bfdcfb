"""Waiting for a condition instead of sleeping: the only way in which tests let time pass."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

PAUSE_S = 0.02
# The suite's own limit for what must happen: a busy machine does not reach it, a defect does. How
# quick something is, is no claim of a test that shares its machine. The run of a test that has to
# fail sets a shorter one.
LIMIT_NAME = "WALKEEPER_TEST_LIMIT_S"
LIMIT_S = float(os.environ.get(LIMIT_NAME, "300"))


class NotInTime(AssertionError):
    """The condition did not hold in time; the text holds what it was and what it gave last."""


def wait_until(condition: Callable[[], T], timeout_s: float = LIMIT_S) -> T:
    """Return the first true value of `condition`, which gets one more try when the time is up."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise NotInTime(f"{condition} gave {value!r} after {timeout_s:g} s")
        time.sleep(PAUSE_S)
    return value


async def until(condition: Callable[[], T], timeout_s: float = LIMIT_S) -> T:
    """Wait as `wait_until` does, while the event loop runs."""

    async def ask() -> T:
        return condition()

    return await until_awaited(ask, timeout_s)


async def until_awaited(condition: Callable[[], Awaitable[T]], timeout_s: float = LIMIT_S) -> T:
    """Wait as `until` does, for a condition that must itself wait: a query, say."""
    deadline = time.monotonic() + timeout_s
    while not (value := await condition()):
        if time.monotonic() > deadline:
            raise NotInTime(f"{condition} gave {value!r} after {timeout_s:g} s")
        await asyncio.sleep(PAUSE_S)
    return value
