"""TCP ports for servers that must know theirs before they start. A shell.

Each process claims a block of ports for as long as it lives, by a name that the kernel keeps (an
abstract Unix socket). Two processes never draw from one block. So the port of a server that is
stopped for a moment, or has not started yet, goes to nobody else.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from itertools import cycle

HOST = "127.0.0.1"
# Below the ports that Linux gives to connections, so that no connection takes one of them.
PORTS = range(20_000, 32_000)
BLOCK_PORTS = 200


def free_port() -> int:
    """Return a port of this process's block on which no server listens now.

    A server whose port others must know before its start cannot take port 0. The ports come in
    turn, so one comes again only after all others of the block. Raise OSError if none is free.
    """
    for _ in range(BLOCK_PORTS):
        port = next(_block())
        with socket.socket() as listener:
            try:
                listener.bind((HOST, port))
            except OSError:
                continue
        return port
    last = f"{port} was the last of {BLOCK_PORTS}"
    raise OSError(f"no port is free on {HOST}: {last}; stop servers that are no longer needed")


class _Block:
    """The ports of one process, in turn. `claim` is a descriptor that stays open until its end."""

    def __init__(self, first: int, claim: int | None) -> None:
        self.process, self.claim = os.getpid(), claim
        self.ports: Iterator[int] = cycle(range(first, first + BLOCK_PORTS))


_claimed: _Block | None = None


def _block() -> Iterator[int]:
    global _claimed
    if _claimed is None or _claimed.process != os.getpid():  # a forked process claims its own
        _claimed = _claim_block()
    return _claimed.ports


def _claim_block() -> _Block:
    """Claim the first block that no living process has claimed.

    Where the system has no abstract sockets, or all blocks are claimed, the process's number
    chooses the block.
    """
    firsts = PORTS[::BLOCK_PORTS]
    for first in firsts:
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0walkeeper-ports-{first}")
        except OSError:
            claim.close()
            continue
        return _Block(first, claim.detach())
    return _Block(firsts[os.getpid() % len(firsts)], None)
