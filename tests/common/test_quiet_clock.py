"""Some steps take time on the loop of quiet_clock.py, and others do not."""

from __future__ import annotations

import asyncio
import socket
import threading
import time

import pytest

from tests.support.quiet_clock import run_quietly

LONG_S = 3600.0


def be_put_aside() -> None:
    time.sleep(0.1)


def work() -> None:
    sum(range(100_000))


def test_time_stands_still_while_the_process_is_put_aside() -> None:
    async def story() -> float:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        async with asyncio.timeout(0.3):
            for _ in range(4):
                be_put_aside()
                await asyncio.sleep(0)
        return loop.time() - began_s

    assert run_quietly(story()) < 0.3


def test_a_limit_passes_while_the_loop_is_always_busy() -> None:
    async def story() -> None:
        async with asyncio.timeout(0.05):
            while True:
                work()
                await asyncio.sleep(0)

    with pytest.raises(TimeoutError):
        run_quietly(story())


def test_a_limit_passes_while_nothing_comes() -> None:
    async def story() -> None:
        async with asyncio.timeout(0.05):
            await asyncio.get_running_loop().create_future()

    with pytest.raises(TimeoutError):
        run_quietly(story())


def test_a_wait_for_another_thread_counts() -> None:
    async def story() -> float:
        loop = asyncio.get_running_loop()
        here, there = socket.socketpair()
        here.setblocking(False)
        with here, there:
            threading.Timer(0.1, there.sendall, (b"x",)).start()
            async with asyncio.timeout(LONG_S):
                assert await loop.sock_recv(here, 1) == b"x"
            return loop.time()

    began_s = time.monotonic() - time.thread_time()
    assert 0.0 < run_quietly(story()) <= time.monotonic() - began_s
