"""The bytes that a busy process receives at once, through the shipping connection (`--busy`).

Without this option a process sees each frame alone, the moment it arrives. A real process is busy
now and then, mostly with an fdatasync. It then receives all that arrived meanwhile in one piece. A
stream may be cut anywhere: one write may be several appends, and half of one waits in the
connection's memory.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from tests.proof.sim.world import World
from walkeeper_common.shell.safekeeper_links.framed_connection import FramedConnection
from walkeeper_common.wire.framing import Message

BUSY_MS = (0, 0, 1, 10, 100)


class Process(Protocol):
    """The program at this end of a connection."""

    @property
    def is_closed(self) -> bool: ...
    def on_frames(self, memory: bytearray, size: int, /) -> int: ...
    def on_message(self, message: Message, /) -> None: ...


class Inbox:
    """One end's buffer of arrived bytes; also the owner of the shipping connection."""

    def __init__(self, world: World, end: Process) -> None:
        self._world, self._end = world, end
        self._waiting = bytearray()
        self._is_due = False
        self._connection = FramedConnection(lambda _: self)
        self._connection.connection_made(_Transport(end))

    def arrive(self, frame: bytes) -> None:
        """Take bytes that reach the machine; the process receives them when it has time."""
        self._waiting += frame
        self._wait()

    def _wait(self) -> None:
        if not self._is_due:
            self._is_due = True
            random = self._world.random
            self._world.later(random.choice(BUSY_MS) * random.random(), self._receive)

    def _receive(self) -> None:
        self._is_due = False
        random, waiting = self._world.random, self._waiting
        size = len(waiting) if random.random() < 0.7 else random.randint(1, len(waiting))
        received, self._waiting = waiting[:size], waiting[size:]
        while received and not self._end.is_closed:
            room = self._connection.get_buffer(-1)
            taken = min(len(room), len(received))
            room[:taken] = received[:taken]
            del received[:taken]
            self._connection.buffer_updated(taken)
        if self._waiting and not self._end.is_closed:
            self._wait()

    def on_frames(self, memory: bytearray, size: int) -> int:
        return self._end.on_frames(memory, size)

    def on_message(self, message: Message) -> None:
        self._end.on_message(message)

    def on_closed(self, reason: str) -> None:
        raise AssertionError(f"bytes that we sent ourselves: {reason}")


class _Transport(asyncio.Transport):
    """A transport without a socket: every answer goes through the end."""

    def __init__(self, end: Process) -> None:
        super().__init__({"sslcontext": "so that no descriptor is looked for"})
        self._end = end

    def is_closing(self) -> bool:
        return self._end.is_closed
