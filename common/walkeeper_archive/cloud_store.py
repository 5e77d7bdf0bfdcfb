"""S3 and compatible stores, Google Cloud Storage, Azure: a prefix of a bucket, through obstore.

Credentials, regions and endpoints come from the variables that each cloud's own tools read
(AWS_ACCESS_KEY_ID, AWS_REGION, AWS_ENDPOINT_URL, GOOGLE_SERVICE_ACCOUNT, AZURE_STORAGE_…). A put
carries `If-None-Match: *` and is one request, so that an object is whole or absent and never
replaced. A store without conditional puts answers with an error, which the operator sees.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from walkeeper_archive.archive_errors import ArchiveUnavailable
from walkeeper_archive.object_store import StoredObject
from walkeeper_common.buffers import Buffer
from walkeeper_common.errors import Refused
from walkeeper_common.operator_text.hidden_secrets import shown_url, without_secrets

REQUEST_TIMEOUT_S = 60
CONNECT_TIMEOUT_S = 5
RETRIES_MAX = 2
PANIC = "PanicException"  # from pyo3, which gives it no module that could be imported
RETRY_TIMEOUT_S = 10
PART_BYTES = 1 << 20
# The variables that may name an endpoint without TLS: the operator's own store, on a network that
# the operator trusts.
_ENDPOINTS = (
    *("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"),
    *("AZURE_ENDPOINT", "AZURE_STORAGE_ENDPOINT", "GOOGLE_BASE_URL"),
)


def has_plain_endpoint() -> bool:
    """Return True if the environment names an endpoint without TLS.

    obstore refuses one unless `allow_http` is set.
    """
    return any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS)


class CloudStore:
    """The store at a URL whose scheme obstore knows."""

    def __init__(self, url: str) -> None:
        try:
            import obstore
            import obstore.exceptions
            import obstore.store
        except ModuleNotFoundError as error:
            raise Refused(
                f"{shown_url(url)}: this kind of archive needs obstore: "
                "pip install 'walkeeper[archive]'"
            ) from error
        self._api: Any = obstore
        self._errors = (obstore.exceptions.BaseError, OSError)
        self._given = url.rstrip("/")
        self.url = shown_url(self._given)  # for texts, and as the name of the place
        try:
            self._store: Any = obstore.store.from_url(
                self._given,
                client_options={
                    "timeout": f"{REQUEST_TIMEOUT_S}s",
                    "connect_timeout": f"{CONNECT_TIMEOUT_S}s",
                    "allow_http": has_plain_endpoint(),
                },
                retry_config={
                    "max_retries": RETRIES_MAX,
                    "retry_timeout": timedelta(seconds=RETRY_TIMEOUT_S),
                },
            )
        except (*self._errors, ValueError) as error:
            said = without_secrets(_first_line(error), url)
            raise Refused(f"{shown_url(url)} is no place for an archive: {said}") from None

    def put_new(self, path: str, data: Buffer) -> bool:
        with self._failures("writing", path):
            try:
                self._api.put(self._store, path, data, mode="create", use_multipart=False)
            except self._api.exceptions.AlreadyExistsError:
                return False
        return True

    def get(self, path: str) -> memoryview | None:
        with self._failures("reading", path):
            try:
                return memoryview(self._api.get(self._store, path).bytes())  # not copied
            except FileNotFoundError:
                return None

    def digest(self, path: str) -> str | None:
        found = hashlib.sha256()
        with self._failures("reading", path):
            try:
                for part in self._api.get(self._store, path).stream(min_chunk_size=PART_BYTES):
                    found.update(part)
            except FileNotFoundError:
                return None
        return found.hexdigest()

    def list_from(self, folder: str, after: str = "") -> Iterator[StoredObject]:
        with self._failures("listing", folder):
            offset = after if after > folder else None
            for part in self._api.list(self._store, folder or None, offset=offset):
                for item in part:
                    path, modified_s = str(item["path"]), item["last_modified"].timestamp()
                    if path > after:  # not all stores know an offset (azurite), and send all
                        yield StoredObject(path, int(item["size"]), modified_s)

    def folders(self, folder: str) -> list[str]:
        with self._failures("listing", folder):
            found = self._api.list_with_delimiter(self._store, folder or None)
            return sorted(str(path).rpartition("/")[2] for path in found["common_prefixes"])

    def sync(self, path: str) -> None:
        """Do nothing: an object that can be seen is durable."""

    def delete(self, path: str) -> None:
        with self._failures("removing", path), suppress(FileNotFoundError):
            self._api.delete(self._store, path)

    @contextmanager
    def _failures(self, doing: str, path: str) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            # A panic of the library is no Exception. It must not end a process that acknowledges
            # commits.
            if not isinstance(error, self._errors) and type(error).__name__ != PANIC:
                raise
            where = f"{self.url}/{path}" if path else self.url
            said = without_secrets(_first_line(error), self._given)
            # Not `from error`: a traceback would show the request, and with it a signature.
            raise ArchiveUnavailable(f"{doing} {where}: {said}") from None


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
