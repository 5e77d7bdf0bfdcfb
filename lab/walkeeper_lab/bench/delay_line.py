"""A TCP relay that delivers each byte a set time after it came: a long cable on one machine.

    python -P -m walkeeper_lab.bench.delay_line PORT TARGET_PORT ONE_WAY_S

It accepts on 127.0.0.1:PORT, connects each connection to TARGET_PORT at once, and delays what comes
in both directions. So one exchange takes twice the time. It prints `ready: PORT`. A side that ends,
or is reset, ends for the other one after the same time. The kernel's netem would delay packets, but
needs root and is missing in many kernels.

select() waits with microseconds, unlike epoll and the event loops, and without the 50 µs by which
Linux lets a sleeper be late.
"""

from __future__ import annotations

import contextlib
import ctypes
import select
import socket
import sys
import time
from collections import deque
from collections.abc import Sequence

HOST = "127.0.0.1"
RECEIVED_BYTES_MAX = 1 << 18
HELD_BYTES_MAX = 1 << 25  # 1 GB/s for 32 ms
BACKLOG = 128
PR_SET_TIMERSLACK = 29


class Direction:
    """The bytes from one socket to another, each with the time at which it is due."""

    def __init__(self, source: socket.socket, sink: socket.socket, one_way_s: float) -> None:
        self.source, self.sink, self._one_way_s = source, sink, one_way_s
        self._held: deque[tuple[float, memoryview]] = deque()  # empty bytes are the end
        self._held_bytes = 0
        self.has_ended = self.is_blocked = self.is_over = False

    @property
    def reads(self) -> bool:
        return not self.has_ended and self._held_bytes < HELD_BYTES_MAX

    @property
    def due_s(self) -> float | None:
        """Return the time of the first held bytes, or None if they wait for no time."""
        return self._held[0][0] if self._held and not self.is_blocked else None

    def receive(self, now_s: float) -> None:
        """Take what the source has."""
        try:
            data = self.source.recv(RECEIVED_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.has_ended = not data
        self._held.append((now_s + self._one_way_s, memoryview(data)))
        self._held_bytes += len(data)

    def deliver(self, now_s: float) -> None:
        """Send what is due, as far as the sink takes it."""
        self.is_blocked = False
        while self._held and self._held[0][0] <= now_s:
            due_s, data = self._held.popleft()
            if not data:
                self.is_over = True
                with contextlib.suppress(OSError):
                    self.sink.shutdown(socket.SHUT_WR)
                return
            try:
                sent = self.sink.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:  # the peer has gone: nobody waits for the rest
                self._held.clear()
                self.has_ended = self.is_over = True
                return
            self._held_bytes -= sent
            if sent < len(data):
                self._held.appendleft((due_s, data[sent:]))
                self.is_blocked = True
                return


class DelayLine:
    """The relay of one port."""

    def __init__(self, port: int, target_port: int, one_way_s: float) -> None:
        self._target, self._one_way_s = (HOST, target_port), one_way_s
        self._listener = socket.create_server((HOST, port), backlog=BACKLOG)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._pairs: list[tuple[Direction, Direction]] = []

    def run(self) -> None:
        """Carry bytes until the process ends."""
        while True:
            self.step()

    def step(self) -> None:
        """Wait for the next bytes or the next time, and do all that can be done then."""
        directions = [one for pair in self._pairs for one in pair if not one.is_over]
        reads = {one.source: one for one in directions if one.reads}
        writes = {one.sink: one for one in directions if one.is_blocked}
        due = [one.due_s for one in directions if one.due_s is not None]
        wait_s = max(0.0, min(due) - time.monotonic()) if due else None
        readable, writable, _ = select.select([self._listener, *reads], list(writes), [], wait_s)
        now_s = time.monotonic()
        for found in readable:
            if found is self._listener:
                self._accept()
            else:
                reads[found].receive(now_s)
        for one in directions:
            if not one.is_blocked or one.sink in writable:
                one.deliver(now_s)
        self._close_ended()

    def close(self) -> None:
        """End the listener and all connections."""
        self._listener.close()
        for there, back in self._pairs:
            there.source.close()
            back.source.close()

    def _accept(self) -> None:
        try:
            near, _ = self._listener.accept()
        except OSError:
            return  # it has gone already
        try:
            far = socket.create_connection(self._target)
        except OSError:
            near.close()
            return
        for each in (near, far):
            each.setblocking(False)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._pairs.append(
            (Direction(near, far, self._one_way_s), Direction(far, near, self._one_way_s))
        )

    def _close_ended(self) -> None:
        for there, back in [pair for pair in self._pairs if all(one.is_over for one in pair)]:
            self._pairs.remove((there, back))
            there.source.close()
            back.source.close()


def main(arguments: Sequence[str]) -> None:
    """Carry bytes until a signal ends the process."""
    port, target_port, one_way_s = int(arguments[0]), int(arguments[1]), float(arguments[2])
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1)  # in nanoseconds
    line = DelayLine(port, target_port, one_way_s)
    sys.stdout.write(f"ready: {line.port}\n")
    sys.stdout.flush()
    line.run()


if __name__ == "__main__":
    main(sys.argv[1:])
