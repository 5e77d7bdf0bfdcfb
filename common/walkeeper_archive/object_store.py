"""Where an archive lies, as the archive sees it: the port that each store is (opening.py).

Contract of a store: all of it blocks, from any thread; paths are relative, with `/`. `put_new` is
atomic and durable when it returns, and never replaces anything: whoever reads the path meets
nothing or the whole. Failures are ArchiveUnavailable with the URL of the object.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One line of a listing."""

    path: str
    size: int
    modified_s: float


class ObjectStore(Protocol):
    """A prefix of a store."""

    @property
    def url(self) -> str: ...

    def put_new(self, path: str, data: bytes | memoryview) -> bool:
        """False, and nothing is changed, if something is there already."""
        ...

    def get(self, path: str) -> memoryview | None:
        """All of it; None if nothing is there."""
        ...

    def digest(self, path: str) -> str | None:
        """SHA-256 of what is there, in hexadecimal, read in parts; None if nothing is there."""
        ...

    def list_from(self, folder: str, after: str = "") -> Iterator[StoredObject]:
        """All below `folder`, in order of their paths; those greater than `after` only."""
        ...

    def folders(self, folder: str) -> list[str]:
        """The names directly below `folder` that have something below them."""
        ...

    def sync(self, path: str) -> None:
        """Makes sure that what somebody else has put there is durable. He may have been killed
        between the two."""
        ...

    def delete(self, path: str) -> None:
        """No error if it is gone already."""
        ...
