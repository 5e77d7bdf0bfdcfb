"""The store that a URL means.

file:///path, /path     a directory, here (local_store): synced before it counts
s3://bucket/prefix, gs://…, az://…     obstore (cloud_store), the extra `walkeeper[archive]`
"""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from walkeeper_archive.local_store import LocalStore
from walkeeper_archive.object_store import ObjectStore
from walkeeper_common.errors import Refused
from walkeeper_common.operator_text.hidden_secrets import shown_url

CLOUD_SCHEMES = frozenset(
    ("s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss", "http", "https")
)


def open_store(url: str) -> ObjectStore:
    """Return the store, without any request to it.

    Raise Refused if the URL means no store, or if the store's library is missing.
    """
    if not url:
        raise Refused("an empty text is no place for an archive: name a directory or a URL")
    path = local_path(url)
    if path is not None:
        return LocalStore(path)
    scheme = url.partition("://")[0].lower()
    if scheme not in CLOUD_SCHEMES:  # obstore knows memory:// too, from which WAL would be gone
        raise Refused(
            f"{shown_url(url)} is no place for an archive: {scheme}:// is not file://, s3://, "
            "gs:// or az://"
        )
    from walkeeper_archive.cloud_store import CloudStore

    return CloudStore(url)


def local_path(url: str) -> str | None:
    """Return the path of a directory or a file here, or None for a URL of an object store.

    Raise Refused for a file:// URL that is not of a path here alone.
    """
    if not url.startswith("file://"):
        return None if "://" in url else url
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or not parts.path:
        raise Refused(
            f"{shown_url(url)} names a host; write file:///directory for a directory here"
        )
    if "?" in url or "#" in url:  # they end the path of a URL
        raise Refused(f"{shown_url(url)} has a ? or a #; write %3F or %23 for it")
    return unquote(parts.path)
