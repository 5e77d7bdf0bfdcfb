"""Where a daemon listens: host and port, and the one text of them, which every option takes."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any, Protocol, TypeAlias

from walkeeper_common.errors import Refused

Address: TypeAlias = tuple[str, int]


def shown_address(address: Address) -> str:
    """`10.0.0.1:5454`, `[::1]:5454`."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def in_use(address: Address, option: str) -> Refused:
    return Refused(
        f"{shown_address(address)} is in use: another process listens there; stop it, or choose "
        f"another port with {option}"
    )


class Socket(Protocol):
    def getsockname(self) -> tuple[Any, ...]: ...


def where_it_listens(listening: Socket | None, wanted: Address, option: str) -> Address:
    """With its real port. Refused if another process began to listen between our bind and our
    listen: uvloop says nothing of that, and the listener has no socket then."""
    if listening is None:
        raise in_use(wanted, option)
    host, port, *_ = listening.getsockname()
    return host, port


def is_host(text: str) -> bool:
    """Whether it can be looked up at all: a name's parts, between dots, have 1 to 63 bytes."""
    try:
        text.encode("idna")  # as socket and asyncio do, which do not call the UnicodeError OSError
    except UnicodeError:
        return False
    return "\0" not in text


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it. Nothing is looked up: of names, `localhost` alone."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def parse_address(text: str) -> Address:
    """Of a text that `shown_address` made; an IPv6 address may also have no brackets. Refused if
    it is none: a safekeeper may have been told it by anybody."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdecimal()):
        raise Refused(f"{text!r} is no address: host:port is one")
    return host.strip("[]"), int(port)
