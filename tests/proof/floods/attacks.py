"""The floods: visits by peers without a certificate or a password, as fast as they can.

Each attack is one visit of a safekeeper's port, and `besiege` makes many visits at a time. A visit
ends with a reset: no port stays in TIME_WAIT, so that the attacker never runs out of them.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import secrets
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from tests.proof.fuzz.mutation import havoc
from walkeeper_common.addresses import Address
from walkeeper_common.errors import RemoteProtocolError
from walkeeper_common.postgres.pgwire import MessageBuffer, message, startup_packet
from walkeeper_common.wire.framing import FRAME_BYTES_MAX, FRAME_HEAD, PREFACE, encode
from walkeeper_common.wire.requests import LogQuery, StatusRequest

RESET = struct.pack("ii", 1, 0)
INT32 = struct.Struct("!i")
HELD_S = 30.0  # how long a silent visitor stays, unless the safekeeper ends the visit
ANSWER_S = 5.0
COMPUTED = 10_000  # numbers that the control adds before it looks for SIGTERM
STARTUP = startup_packet({"user": "nobody", "database": "replication", "replication": "true"})
SSL_REQUEST = struct.pack("!ii", 8, 80877103)
# Beginnings of each kind of conversation, which `mutated` changes.
BEGINNINGS = (
    STARTUP,
    SSL_REQUEST,
    SSL_REQUEST + b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(80),
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(80),
    PREFACE + b"".join(map(bytes, encode(StatusRequest("main")))),
    PREFACE + b"".join(map(bytes, encode(LogQuery("main")))),
    PREFACE + FRAME_HEAD.pack(FRAME_BYTES_MAX, ord("a")),
    STARTUP + message(b"p", b"SCRAM-SHA-256\0", INT32.pack(32), b"n,,n=,r=" + bytes(24)),
)


@dataclass(slots=True)
class Visit:
    """One connection, and the attacker's dice."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    random: Random

    async def ended(self, within_s: float) -> None:
        """Wait until the safekeeper ends the visit, but no longer than this."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while await self.reader.read(1 << 16):
                    pass


@dataclass(frozen=True, slots=True)
class Attack:
    """A kind of visit, and how many of them are paid at a time."""

    name: str
    about: str
    visit: Callable[[Visit], Awaitable[None]] | None  # None visits nobody, and computes instead
    at_once: int


async def silent(visit: Visit) -> None:
    await visit.ended(HELD_S)


async def handshake(visit: Visit) -> None:
    """Finish a TLS handshake without a certificate, which costs the server its signature."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["postgresql"])
    await visit.writer.start_tls(context)


async def password(visit: Visit) -> None:
    """Log in with a guess. The guess is no proof, so that it costs the attacker nothing."""
    visit.writer.write(STARTUP)
    messages = MessageBuffer(body_bytes_max=1 << 16)
    nonce = secrets.token_hex(12)
    await _answer(visit, messages)
    first = f"n,,n=,r={nonce}".encode()
    initial = (b"SCRAM-SHA-256\0", INT32.pack(len(first)), first)
    visit.writer.write(message(b"p", *initial))
    asked = (await _answer(visit, messages))[INT32.size :].decode()
    joint = asked.partition(",")[0].removeprefix("r=")
    guess = base64.b64encode(visit.random.randbytes(32)).decode()
    visit.writer.write(message(b"p", f"c=biws,r={joint},p={guess}".encode()))
    await visit.ended(ANSWER_S)


async def _answer(visit: Visit, messages: MessageBuffer) -> bytes:
    """Return the body of the next message; raise ConnectionError at the end of the stream."""
    while (received := messages.next_message()) is None:
        data = await visit.reader.read(1 << 16)
        if not data:
            raise ConnectionError("the safekeeper ended the visit")
        messages.feed(data)
    return received.body


async def claim(visit: Visit) -> None:
    """Claim a frame of many megabytes with 13 bytes, and send none of it."""
    visit.writer.write(PREFACE + FRAME_HEAD.pack(FRAME_BYTES_MAX, ord("a")))
    await visit.ended(HELD_S)


async def garbage(visit: Visit) -> None:
    visit.writer.write(visit.random.randbytes(visit.random.randrange(1, 400)))
    await visit.ended(ANSWER_S)


async def mutated(visit: Visit) -> None:
    """Begin as some client does, with a few bytes changed. Do not wait for a long answer."""
    visit.writer.write(havoc(visit.random.choice(BEGINNINGS), visit.random))
    await visit.ended(0.2)


ATTACKS = (
    Attack("silent", "connections that send nothing", silent, 1000),
    Attack("handshakes", "TLS handshakes without a certificate", handshake, 50),
    Attack("passwords", "guessed passwords", password, 50),
    Attack("claims", "frames of 17 MiB that are claimed and not sent", claim, 1000),
    Attack("garbage", "random bytes", garbage, 50),
)
CONTROL = Attack("control", "no visit: the attacker computes", None, 1)
MUTATED = Attack("mutated", "beginnings of conversations with changed bytes", mutated, 1000)


@dataclass(slots=True)
class Paid:
    """The number of visits so far."""

    visits: int = 0


async def besiege(
    attack: Attack,
    addresses: Sequence[Address],
    seed: int,
    most: int | None = None,
    paid: Paid | None = None,
) -> int:
    """Make visits at all addresses in turn, count them in `paid`, and return their number.

    End after `most` visits, or without it when the task is cancelled.
    """
    numbers, counted = itertools.count(), paid or Paid()

    async def visitor() -> None:
        for number in numbers:
            if most is not None and number >= most:
                return
            address = addresses[number % len(addresses)]
            if attack.visit is None:
                sum(range(COMPUTED))
                await asyncio.sleep(0)
                continue
            with suppress(OSError, RemoteProtocolError, ValueError):
                await _pay(attack.visit, address, Random(f"{seed} {number}"))
            counted.visits += 1

    with suppress(asyncio.CancelledError):
        await asyncio.gather(*(visitor() for _ in range(attack.at_once)))
    return counted.visits


async def _pay(visit: Callable[[Visit], Awaitable[None]], address: Address, random: Random) -> None:
    reader, writer = await asyncio.open_connection(*address)
    connected: socket.socket = writer.get_extra_info("socket")
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    try:
        await visit(Visit(reader, writer, random))
    finally:
        writer.transport.abort()
