"""Values of base types without parts of other types, as PostgreSQL prints them. Pure.

    PRINTERS[869](data) -> "10.0.0.1/8"      EXTENSIONS["ltree"](data, decode) -> "Top.Science"

Contract: `data` lacks the varlena header. Bytes that have another layout raise DamagedValue, or an
error of `struct` or of a lookup. Layouts: inet.h, varbit.h, timestamp.h, ltree.h.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable

from walkeeper_replay.text.database_text import Decode, fits
from walkeeper_replay.text.float_text import float_text
from walkeeper_replay.text.geometry_text import GEOMETRIC
from walkeeper_replay.text.hstore_text import hstore_text
from walkeeper_replay.text.numerics import numeric_text
from walkeeper_replay.text.times_text import date_text, interval_text, time_text, timestamp_text


def _inet(data: bytes, is_cidr: bool) -> str:
    fits(len(data) in (6, 18) and data[0] == (2 if len(data) == 6 else 3), "an address")
    family, bits, address = data[0], data[1], data[2:]
    host = str(ipaddress.IPv4Address(address[:4])) if family == 2 else _ipv6(address[:16])
    full = 32 if family == 2 else 128
    return host if bits == full and not is_cidr else f"{host}/{bits}"


def _ipv6(address: bytes) -> str:
    """Return an address as inet_net_ntop.c does: IPv4 after `::` or `::ffff:` has dots."""
    words = struct.unpack(">8H", address)
    if not any(words[:5]) and (words[5] == 0xFFFF or (words[5] == 0 and words[6])):
        start = "::ffff:" if words[5] else "::"
        return f"{start}{ipaddress.IPv4Address(address[12:])}"
    return str(ipaddress.IPv6Address(address))


def _bits(data: bytes) -> str:
    count = int.from_bytes(data[:4], "little")
    fits(len(data) == 4 + -(-count // 8), "a string of bits")
    return "".join(f"{byte:08b}" for byte in data[4:])[:count]


def _signed(data: bytes) -> str:
    return str(int.from_bytes(data, "little", signed=True))


def _unsigned(data: bytes) -> str:
    return str(int.from_bytes(data, "little"))


def _i(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


def _numbers(data: bytes) -> str:
    """Print int2vector or oidvector: an array of one dimension, with spaces."""
    element, count = int.from_bytes(data[8:12], "little"), int.from_bytes(data[12:16], "little")
    size = 2 if element == 21 else 4
    fits(20 + size * count == len(data), "a vector of numbers")
    items = (data[20 + size * k : 20 + size * (k + 1)] for k in range(count))
    return " ".join(map(_signed if element == 21 else _unsigned, items))


def _tid(data: bytes) -> str:
    high, low, number = struct.unpack("<HHH", data)
    return f"({high << 16 | low},{number})"


def _snapshot(data: bytes) -> str:
    count, xmin, xmax = struct.unpack_from("<IQQ", data)
    running = struct.unpack_from(f"<{count}Q", data, 20)
    return f"{xmin}:{xmax}:{','.join(map(str, running))}"


def _uuid(data: bytes) -> str:
    digits = data.hex()
    parts = digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]
    return "-".join(parts)


def _timetz(data: bytes) -> str:
    zone = -_i(data[8:12])
    sign, rest = ("-" if zone < 0 else "+"), abs(zone)
    text = f"{time_text(_i(data[:8]))}{sign}{rest // 3600:02d}"
    minutes, seconds = rest % 3600 // 60, rest % 60
    return (
        text
        + (f":{minutes:02d}" if minutes or seconds else "")
        + (f":{seconds:02d}" if seconds else "")
    )


def _interval(data: bytes) -> tuple[int, int, int]:
    return _i(data[:8]), _i(data[8:12]), _i(data[12:16])


def finite_interval(data: bytes) -> str:
    """Print an interval of a version that has no infinite ones: before 17."""
    return interval_text(*_interval(data), has_infinity=False)


def _ltree(data: bytes, decode: Decode) -> str:
    """Print levels: each is its length, its text, and room up to the next place that 8 divides."""
    levels, at = [], 4
    for _ in range(int.from_bytes(data[:2], "little")):
        size = int.from_bytes(data[at : at + 2], "little")
        fits(at + 2 + size <= len(data), "a level")
        levels.append(decode(data[at + 2 : at + 2 + size]))
        at += -(-(size + 2) // 8) * 8
    return ".".join(levels)


INTERVAL = 1186
EXTENSIONS: dict[str, Callable[[bytes, Decode], str]] = {
    "citext": lambda data, decode: decode(data), "hstore": hstore_text, "ltree": _ltree,
}  # fmt: skip
PRINTERS: dict[int, Callable[[bytes], str]] = {
    16: lambda d: "t" if d[0] else "f",
    17: lambda d: "\\x" + d.hex(),
    20: _signed, 21: _signed, 23: _signed,
    22: _numbers, 30: _numbers,
    26: _unsigned, 28: _unsigned, 29: _unsigned, 5069: _unsigned,
    27: _tid,
    **GEOMETRIC,
    650: lambda d: _inet(d, True), 869: lambda d: _inet(d, False),
    700: lambda d: float_text(struct.unpack("<f", d)[0], 4),
    701: lambda d: float_text(struct.unpack("<d", d)[0]),
    829: lambda d: ":".join(f"{b:02x}" for b in d), 774: lambda d: ":".join(f"{b:02x}" for b in d),
    1082: lambda d: date_text(_i(d)),
    1083: lambda d: time_text(_i(d)), 1266: _timetz,
    1114: lambda d: timestamp_text(_i(d), ""), 1184: lambda d: timestamp_text(_i(d), "+00"),
    INTERVAL: lambda d: interval_text(*_interval(d)),
    1560: _bits, 1562: _bits,
    1700: numeric_text,
    2950: _uuid,
    2970: _snapshot, 5038: _snapshot,
    3220: lambda d: "{:X}/{:X}".format(*divmod(int.from_bytes(d, "little"), 1 << 32)),
}  # fmt: skip
