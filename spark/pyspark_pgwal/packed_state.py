"""A state that travels to the executors, with its columns of numbers packed.

    sent = Sent(state)               pickle takes it packed; `sent.state` is equal afterwards

The columns have two bits for the end of each transaction of the WAL. For some transactions they
have an xid, an LSN and a time. Spark's Java has 1 GB by default, and holds copies. From row to row
such numbers grow by little. So most bytes of their differences are zero, and zstd packs them well
when those of one weight lie together.
"""

from __future__ import annotations

import pickle
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

CODEC = "zstd"
_NUMBER = np.dtype(np.uint64)
Packed = tuple[bytes, list[tuple[int, bytes]]]
"""The pickle without its columns, and the columns, each with its bytes before it was packed."""
T = TypeVar("T")


class Sent(Generic[T]):
    """A state that is packed while it travels."""

    def __init__(self, state: T) -> None:
        self.state = state

    def __getstate__(self) -> Packed:
        return packed(self.state)

    def __setstate__(self, given: Packed) -> None:
        self.state = unpacked(given)


def packed(state: object) -> Packed:
    """Return a state without the room that its columns take."""
    columns: list[tuple[int, bytes]] = []

    def take(buffer: pickle.PickleBuffer) -> None:
        plain = np.frombuffer(buffer.raw(), np.uint8)
        if plain.nbytes % _NUMBER.itemsize == 0:
            numbers = plain.view(_NUMBER)
            steps = np.diff(numbers, prepend=_NUMBER.type(0))
            plain = np.ascontiguousarray(steps.view(np.uint8).reshape(-1, _NUMBER.itemsize).T)
        columns.append((plain.nbytes, pa.compress(plain.tobytes(), codec=CODEC, asbytes=True)))

    return pickle.dumps(state, protocol=5, buffer_callback=take), columns


def unpacked(given: Packed) -> Any:
    """Return the state; its columns may be changed."""
    plain, columns = given
    return pickle.loads(plain, buffers=[_column(*column) for column in columns])


def _column(size: int, data: bytes) -> Any:
    plain = np.frombuffer(pa.decompress(data, size, codec=CODEC), np.uint8)
    if size % _NUMBER.itemsize:
        return bytearray(plain)
    steps = np.ascontiguousarray(plain.reshape(_NUMBER.itemsize, -1).T).view(_NUMBER)
    return np.cumsum(steps, dtype=_NUMBER)
