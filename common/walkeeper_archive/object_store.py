"""The place of an archive, as the archive sees it: the port of each store (open_store.py).

Contract of a store: every call blocks, from any thread. Paths are relative, with `/`. `put_new` is
atomic and durable when it returns, and never replaces an object. So a reader of the path finds no
object or the whole one. Failures are ArchiveUnavailable with the URL of the object.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from walkeeper_common.buffers import Buffer


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

    def put_new(self, path: str, data: Buffer) -> bool:
        """Put the object; return False, and change nothing, if an object is there already."""
        ...

    def get(self, path: str) -> memoryview | None:
        """Return all of the object, or None if no object is there."""
        ...

    def digest(self, path: str) -> str | None:
        """Return the object's SHA-256 in hexadecimal, read in parts, or None if it is not there."""
        ...

    def list_from(self, folder: str, after: str = "") -> Iterator[StoredObject]:
        """Yield all objects below `folder` in order of their paths; only those after `after`."""
        ...

    def folders(self, folder: str) -> list[str]:
        """Return the names directly below `folder` that have an object below them."""
        ...

    def sync(self, path: str) -> None:
        """Make sure that an object which another program has put there is durable.

        That program may have been killed between its put and its sync.
        """
        ...

    def delete(self, path: str) -> None:
        """Delete the object; it is no error if it is gone already."""
        ...
