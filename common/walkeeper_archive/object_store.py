"""Where an archive lies: the port, and which store a URL means.

    file:///path, /path     a directory, here (local_store): synced before it counts
    s3://bucket/prefix, gs://…, az://…     obstore (cloud_store), the extra `walkeeper[archive]`

Contract of a store: all of it blocks, from any thread; paths are relative, with `/`. `put_new` is
atomic and durable when it returns, and never replaces anything: whoever reads the path meets
nothing or the whole. Failures are ArchiveUnavailable with the URL of the object.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import unquote, urlsplit

from walkeeper_common.errors import Refused


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


CLOUD_SCHEMES = frozenset(
    ("s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss", "http", "https")
)


def open_store(url: str) -> ObjectStore:
    """Nothing is asked of it yet. Refused: the URL means nothing, or its library is missing."""
    if not url:
        raise Refused("an empty text is no place for an archive: name a directory or a URL")
    if "://" not in url or url.startswith("file://"):
        from walkeeper_archive.local_store import LocalStore

        return LocalStore(_local_path(url))
    scheme = url.partition("://")[0].lower()
    if scheme not in CLOUD_SCHEMES:  # obstore knows memory:// too, from which WAL would be gone
        raise Refused(
            f"{url} is no place for an archive: {scheme}:// is not file://, s3://, gs:// or az://"
        )
    from walkeeper_archive.cloud_store import CloudStore

    return CloudStore(url)


def _local_path(url: str) -> str:
    if not url.startswith("file://"):
        return url
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or not parts.path:
        raise Refused(f"{url} names a host; write file:///directory for a directory here")
    return unquote(parts.path)
