"""`@value`: a dataclass that is never changed and is cheap to make.

Messages, events and effects live for microseconds and are made several times for each commit. A
frozen dataclass sets every field through `object.__setattr__`. That costs more than all the rest of
the object: nine fields take 1.3 us instead of 0.4 us. So mypy refuses a change of a value, and the
interpreter does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def value(cls: type[T]) -> type[T]:
    """Return the class as a dataclass that has slots, is hashable and is compared by its fields."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
