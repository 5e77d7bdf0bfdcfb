"""The address where a daemon listens: host and port, and the one text that every option takes."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any, Protocol, TypeAlias

from walkeeper_common.errors import Refused

Address: TypeAlias = tuple[str, int]
PORT_MAX = 65535
SHOWN_MAX = 300  # characters of a peer's text in a message


def shown_address(address: Address) -> str:
    """Return the address as text: `10.0.0.1:5454` or `[::1]:5454`."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def in_use(address: Address, option: str) -> Refused:
    """Return the refusal of an address on which another process listens; `option` names it."""
    return Refused(
        f"{shown_address(address)} is in use: another process listens there; stop it, or choose "
        f"another port with {option}"
    )


class Socket(Protocol):
    def getsockname(self) -> tuple[Any, ...]: ...


def where_it_listens(listening: Socket | None, wanted: Address, option: str) -> Address:
    """Return the address that was bound, with its real port.

    Raise Refused if another process began to listen between our bind and our listen. uvloop does
    not report that, and the listener has no socket then.
    """
    if listening is None:
        raise in_use(wanted, option)
    host, port, *_ = listening.getsockname()
    return host, port


def is_host(text: str) -> bool:
    """Return True if a resolver takes the name: each part between dots has 1 to 63 bytes."""
    try:
        text.encode("idna")  # as socket and asyncio do, which do not call the UnicodeError OSError
    except UnicodeError:
        return False
    return "\0" not in text


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach the host.

    No name is looked up: of all names, only `localhost` is one.
    """
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def refuse_open_door(
    address: Address | None, option: str, risk: str, *, allowed: bool, lock: str = ""
) -> bool:
    """Return True if other machines can reach the address; raise Refused if it is not `allowed`.

    `risk` says what a client that reaches it can do without authentication. `lock` is the option
    with which clients must prove who they are: the better remedy, if there is one.
    """
    if address is None or is_loopback(address[0]):
        return False
    if allowed:
        return True
    raise Refused(
        f"{option} {address[0]} is not loopback, and the port has no authentication: a client that "
        f"reaches it can {risk}; {f'add {lock}, ' * bool(lock)}listen on 127.0.0.1, or add "
        "--allow-unauthenticated on a network that you trust"
    )


def parse_address(text: str) -> Address:
    """Parse a text that `shown_address` made; an IPv6 address may also have no brackets.

    Raise Refused if the text is no address: a safekeeper may have received it from any peer.
    """
    host, _, port = text.rpartition(":")
    host = host.strip("[]")
    is_port = port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) <= PORT_MAX
    if not (is_port and host and is_host(host)):
        raise Refused(f"{text[:SHOWN_MAX]!r} is no address: host:port is one")
    return host, int(port)


def is_address(text: str) -> bool:
    """Return True if a peer's text is an address."""
    try:
        parse_address(text)
    except Refused:
        return False
    return True
