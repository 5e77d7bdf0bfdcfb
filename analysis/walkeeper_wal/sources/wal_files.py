"""The places of archived WAL: a directory, an object store, one file, each compressed or not.

    LocalFiles, ObjectFiles      list_files(), read(path), read_front(path, size); see opening.py

The first bytes of a file show its compression, because Barman keeps PostgreSQL's names: gzip, zstd,
lz4, bzip2, xz. WAL-G's brotli has no mark and goes by its name. A file that walkeeper has encrypted
is opened with --archive-keys. A file that another tool has encrypted is a clear error.
The first read of a whole file imports numpy. Every read blocks. A read returns the part that a
truncated file has, and the walk names the gap.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from walkeeper_wal.sources.packing_marks import MAGIC_BYTES, codec_of, refuse_encrypted
from walkeeper_wal.wal_errors import Gone, HistoryError

if TYPE_CHECKING:
    from walkeeper_wal.records.segment import Bytes

Pieces = tuple[int, bytes, bytes, bytes]  # the length, the first, those at a place, the last
"""The length of a file as it lies, its first and its last bytes."""


class WalFiles(Protocol):
    """A tree of files. Paths are relative to it, with `/`."""

    def list_files(self) -> list[tuple[str, int]]: ...  # path and size
    def read(self, path: str) -> Bytes: ...  # unpacked
    def read_front(self, path: str, size: int) -> bytes: ...  # at most, and not beyond the end
    def open_plain(self, path: str) -> int | None: ...  # a descriptor, if it is a plain local file
    def read_pieces(self, path: str, size: int, at: int) -> Pieces: ...  # `size` bytes each
    def shown(self, path: str) -> str: ...  # for people


def _unlisted(error: OSError) -> None:
    """Raise for a folder that cannot be listed, since it may have the newest WAL.

    A running server removes folders, so a missing one is no error. Neither is lost+found.
    """
    folder = Path(error.filename or "")
    if not isinstance(error, FileNotFoundError) and folder.name != "lost+found":
        raise _failed(folder, error) from error


def _failed(path: Path, error: OSError) -> HistoryError:
    kind = Gone if isinstance(error, FileNotFoundError) else HistoryError
    return kind(error.strerror or str(error), str(path))


class LocalFiles:
    """A directory, or one file as if it were alone in its directory."""

    def __init__(self, path: Path) -> None:
        self._only = path.name if path.is_file() else None
        self.root = path.parent if self._only else path

    def list_files(self) -> list[tuple[str, int]]:
        if self._only:
            return [(self._only, (self.root / self._only).stat().st_size)]
        found = []
        for folder, _, names in os.walk(self.root, onerror=_unlisted, followlinks=True):
            inner = os.path.relpath(folder, self.root)
            for name in names:
                path = name if inner == "." else f"{inner}/{name}".replace(os.sep, "/")
                try:
                    found.append((path, os.stat(os.path.join(folder, name)).st_size))
                except FileNotFoundError:
                    continue  # a running server recycles and removes segments
                except OSError as error:
                    raise _failed(Path(folder, name), error) from error
        return sorted(found)

    def read(self, path: str) -> Bytes:
        from walkeeper_wal.sources.unpacking import read_unpacked

        full = self.root / path
        try:
            return read_unpacked(full, self.shown(path))
        except OSError as error:
            raise _failed(full, error) from error

    def open_plain(self, path: str) -> int | None:
        """Return a descriptor that the caller closes, or None if the file is compressed."""
        full = self.root / path
        try:
            descriptor = os.open(full, os.O_RDONLY)
            mark = os.pread(descriptor, MAGIC_BYTES, 0)
        except OSError as error:
            raise _failed(full, error) from error
        if codec_of(mark, path) is None:
            try:
                refuse_encrypted(mark, self.shown(path))
            except HistoryError:
                os.close(descriptor)
                raise
            return descriptor
        os.close(descriptor)
        return None

    def read_front(self, path: str, size: int) -> bytes:
        full = self.root / path
        try:
            with full.open("rb") as file:
                mark = file.read(MAGIC_BYTES)
                if codec_of(mark, path) is None:
                    refuse_encrypted(mark, self.shown(path))
                    data = mark + file.read(max(size - len(mark), 0))
                    return data[:size]
        except OSError as error:
            raise _failed(full, error) from error
        import numpy as np

        from walkeeper_wal.sources.unpacking import unpack

        return unpack(np.fromfile(full, np.uint8), self.shown(path), size).tobytes()

    def read_pieces(self, path: str, size: int, at: int) -> Pieces:
        full = self.root / path
        try:
            with full.open("rb") as file:
                length = os.fstat(file.fileno()).st_size
                pieces = []
                for begin in (0, at, max(length - size, 0)):
                    file.seek(begin)
                    pieces.append(file.read(size))
                return length, pieces[0], pieces[1], pieces[2]
        except OSError as error:
            raise _failed(full, error) from error

    def shown(self, path: str) -> str:
        return str(self.root / path)


class ObjectFiles:
    """A prefix of an object store. An error of the store is a HistoryError."""

    def __init__(self, url: str) -> None:
        try:
            import obstore.store
        except ModuleNotFoundError as error:
            raise HistoryError(
                f"{url}: object stores need obstore: pip install 'walkeeper[archive]'"
            ) from error
        from walkeeper_archive.cloud_store import has_plain_endpoint

        self._url = url.rstrip("/")
        self._api: Any = obstore
        with self._asked(""):
            self._store: Any = obstore.store.from_url(
                self._url, client_options={"allow_http": has_plain_endpoint()}
            )

    @contextmanager
    def _asked(self, path: str) -> Iterator[None]:
        try:
            yield
        except (self._api.exceptions.BaseError, OSError) as error:
            said = str(error).strip().splitlines()[0]
            gone = isinstance(error, (FileNotFoundError, self._api.exceptions.NotFoundError))
            raise (Gone if gone else HistoryError)(said, self.shown(path)) from error

    def list_files(self) -> list[tuple[str, int]]:
        with self._asked(""):
            parts = list(self._api.list(self._store))
        return sorted((str(item["path"]), int(item["size"])) for part in parts for item in part)

    def read(self, path: str) -> Bytes:
        import numpy as np

        from walkeeper_wal.sources.unpacking import unpack

        with self._asked(path):
            data: Any = self._api.get(self._store, path).bytes()
        return unpack(np.frombuffer(data, np.uint8), self.shown(path))

    def read_front(self, path: str, size: int) -> bytes:
        with self._asked(path):
            length = int(self._api.head(self._store, path)["size"])
            if not length:
                return b""
            front = self._api.get_range(self._store, path, start=0, end=min(size, length))
        data = bytes(front)
        mark = data[:MAGIC_BYTES]
        if codec_of(mark, path) is None:
            refuse_encrypted(mark, self.shown(path))
            return data
        return self.read(path)[:size].tobytes()

    def read_pieces(self, path: str, size: int, at: int) -> Pieces:
        with self._asked(path):
            length = int(self._api.head(self._store, path)["size"])
            if not length:
                return 0, b"", b"", b""
            begins = (0, min(at, length - 1), max(length - size, 0))
            first, within, last = (
                bytes(
                    self._api.get_range(
                        self._store, path, start=begin, end=min(begin + size, length)
                    )
                )
                for begin in begins
            )
            return length, first, within, last

    def open_plain(self, path: str) -> int | None:
        return None

    def shown(self, path: str) -> str:
        return f"{self._url}/{path}"
