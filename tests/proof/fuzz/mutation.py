"""Changes to bytes for those who have no libFuzzer at hand, and to streams of equal chunks.

`havoc` does what libFuzzer's own mutator does, without its dictionary. Tests use it to show that
plain pytest finds a planted bug. The structured mutators use it to change one field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from random import Random

from tests.proof.fuzz.contract import Mutation, Target

INTERESTING = (0, 1, 7, 8, 0x7F, 0x80, 0xFF, 0x100, 0x7FFF, 0xFFFF, 1 << 20, 2**31, 2**32 - 1)


def havoc(data: bytes, random: Random) -> bytes:
    """Make a few small changes."""
    changed = bytearray(data)
    for _ in range(1 << random.randrange(4)):
        _CHANGES[random.randrange(len(_CHANGES))](changed, random)
    return bytes(changed)


def _place(data: bytearray, random: Random, size: int = 1) -> int:
    return random.randrange(max(1, len(data) - size + 1))


def _flip(data: bytearray, random: Random) -> None:
    if data:
        data[_place(data, random)] ^= 1 << random.randrange(8)


def _set(data: bytearray, random: Random) -> None:
    if data:
        data[_place(data, random)] = random.randrange(256)


def _number(data: bytearray, random: Random) -> None:
    size = random.choice((1, 2, 4, 8))
    at = _place(data, random, size)
    value = random.choice(INTERESTING) * random.choice((1, -1)) % (1 << 8 * size)
    if at + size <= len(data):
        data[at : at + size] = value.to_bytes(size, random.choice(("big", "little")))


def _insert(data: bytearray, random: Random) -> None:
    at = random.randrange(len(data) + 1)
    data[at:at] = random.randbytes(random.randrange(1, 9))


def _repeat(data: bytearray, random: Random) -> None:
    at = random.randrange(len(data) + 1)
    piece = bytes(data[at : at + random.randrange(1, 17)])
    data[at:at] = piece * (1 << random.randrange(5))


def _delete(data: bytearray, random: Random) -> None:
    at = random.randrange(len(data) + 1)
    del data[at : at + random.randrange(1, 17)]


_CHANGES: tuple[Callable[[bytearray, Random], None], ...] = (
    _flip,
    _set,
    _number,
    _insert,
    _repeat,
    _delete,
)


def altered_items(items: list[bytes], random: Random, change: Mutation) -> list[bytes]:
    """Make one structural change to a list of frames, packets or events, `change` to one item."""
    items = list(items)
    if not items:
        return [change(b"", random)]
    at = random.randrange(len(items))
    match random.randrange(6):
        case 0:
            del items[at]
        case 1:
            items.insert(at, items[random.randrange(len(items))])
        case 2:
            other = random.randrange(len(items))
            items[at], items[other] = items[other], items[at]
        case _:
            items[at] = change(items[at], random)
    return items


def chunked(size: int) -> Mutation:
    """Return an `alter` for an input that is a list of chunks."""

    def alter(data: bytes, random: Random) -> bytes:
        items = [data[at : at + size] for at in range(0, len(data), size)]
        altered = altered_items(items, random, havoc)
        return b"".join(item[:size].ljust(size, b"\0") for item in altered)

    return alter


def mutated(target: Target, data: bytes, random: Random) -> bytes:
    """Change an input as a run under libFuzzer does: bytes or structure, then mostly a repair."""
    change = target.alter if target.alter is not None and random.randrange(2) else havoc
    data = change(data, random)
    if target.repair is not None and random.randrange(6):
        data = target.repair(data, random)
    return data[: target.bytes_max]


def plain_inputs(target: Target, inputs: Sequence[bytes], random: Random) -> Iterator[bytes]:
    """Yield `inputs`, and then mutations of them without end."""
    yield from inputs
    while True:
        data = random.choice(inputs)
        for _ in range(random.randrange(1, 4)):
            data = mutated(target, data, random)
        yield data


def search(target: Target, inputs: Sequence[bytes], random: Random, *, tries: int) -> str | None:
    """Return the first failure among `inputs` and mutations of them, for tests: no coverage."""
    for data in islice(plain_inputs(target, inputs, random), len(inputs) + tries):
        try:
            target.run(data)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return None
