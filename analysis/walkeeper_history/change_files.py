"""Parquet files of changes, each there once: the sink of a stream that may die at any point.

    sink = ChangeFiles.open("s3://lake/orders")      or a directory
    sink.position() -> 25165824                      all commits up to there are in it
    sink.write(reader, begin, end)                   the changes of commits in (begin, end]
    sink.beat(end, facts)                            the log went on up to `end`

A file is `changes-BEGIN-END.parquet`, with two LSNs of sixteen hexadecimal digits. It appears whole
or not at all, and its name is the record of its range. A stream that comes back goes on at
`position`. Contract: no commit is in two files. A range without changes has no file, so
`position.json` tells readers and the next run how far the log went. Only one stream writes to a
sink, and `claim.txt` names it. A file that has a part of a range already is an error. Memory holds
one row group, and not all changes of a range.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from walkeeper_archive.cloud_store import has_plain_endpoint
from walkeeper_common.lsn import Lsn
from walkeeper_wal.sources.opening import path_here
from walkeeper_wal.wal_errors import HistoryError

BEAT, CLAIM = "position.json", "claim.txt"
# These columns get a dictionary. For the others, the writer would make dictionaries and throw them
# away, which is most of the cost of writing.
_REPEATED = ["database", "schema", "table", "operation", "coverage",
             "old.key_value.key", "new.key_value.key"]  # fmt: skip
_ORDERED = ["start_lsn", "commit_lsn", "commit_time", "xid", "subxid", "table", "operation"]
GROUP_ROWS, GROUP_BYTES = 1 << 18, 128 << 20
_NAME = re.compile(r"changes-([0-9A-F]{16})-([0-9A-F]{16})\.parquet")


def row_groups(changes: Any, group_bytes: int = GROUP_BYTES) -> Iterator[Any]:
    """Yield the batches of a RecordBatchReader as tables of a bounded size."""
    batches, rows, size = list[Any](), 0, 0
    for batch in changes:
        batches.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= GROUP_ROWS or size >= group_bytes:
            yield pa.Table.from_batches(batches, changes.schema)
            batches, rows, size = [], 0, 0
    if batches:
        yield pa.Table.from_batches(batches, changes.schema)


def _parquet(file: IO[bytes], schema: Any) -> Any:
    return pq.ParquetWriter(
        file, schema, compression="zstd", use_dictionary=_REPEATED, write_statistics=_ORDERED
    )


class Objects(Protocol):
    """A flat place for files that appear whole."""

    def names(self) -> list[str]: ...
    def get(self, name: str) -> bytes | None: ...
    def put(self, name: str, data: bytes) -> None: ...  # durable when it returns
    def make(self, name: str, data: bytes) -> bool: ...  # False if it is there already
    def remove(self, name: str) -> None: ...

    # A file to write; it is there, and durable, when the block ends without an error.
    def whole(self, name: str) -> AbstractContextManager[IO[bytes]]: ...


class Folder:
    """A directory, made if there is none."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)

    def names(self) -> list[str]:
        return sorted(path.name for path in self.root.iterdir())

    def get(self, name: str) -> bytes | None:
        try:
            return (self.root / name).read_bytes()
        except FileNotFoundError:
            return None

    def put(self, name: str, data: bytes) -> None:
        with self.whole(name) as file:
            file.write(data)

    @contextmanager
    def whole(self, name: str) -> Iterator[IO[bytes]]:
        partial = self.root / f".{name}.partial"
        try:
            with partial.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        partial.replace(self.root / name)
        self._sync()

    def make(self, name: str, data: bytes) -> bool:
        partial = self.root / f".{name}.{os.getpid()}"
        try:
            self._write(partial, data)
            os.link(partial, self.root / name)
        except FileExistsError:
            return False
        finally:
            partial.unlink()
        self._sync()
        return True

    def remove(self, name: str) -> None:
        (self.root / name).unlink(missing_ok=True)

    def _write(self, path: Path, data: bytes) -> None:
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def _sync(self) -> None:
        descriptor = os.open(self.root, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class _Upload(io.RawIOBase):
    """An upload in parts, as a file of Python."""

    def __init__(self, writer: Any) -> None:
        super().__init__()
        self._writer = writer

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self._writer.write(bytes(view))
        return view.nbytes


class Bucket:
    """A prefix of an object store, whose puts are whole."""

    def __init__(self, url: str) -> None:
        import obstore.store

        self._api: Any = obstore
        self._store: Any = obstore.store.from_url(
            url, client_options={"allow_http": has_plain_endpoint()}
        )

    def names(self) -> list[str]:
        found = (item for part in self._api.list(self._store) for item in part)
        return sorted(str(item["path"]) for item in found)

    def get(self, name: str) -> bytes | None:
        try:
            return bytes(self._api.get(self._store, name).bytes())
        except (FileNotFoundError, self._api.exceptions.NotFoundError):
            return None

    def put(self, name: str, data: bytes) -> None:
        self._api.put(self._store, name, data)

    def remove(self, name: str) -> None:
        self._api.delete(self._store, name)

    @contextmanager
    def whole(self, name: str) -> Iterator[IO[bytes]]:
        writer = self._api.open_writer(self._store, name)
        yield _Upload(writer)  # type: ignore[misc]
        writer.close()  # An upload that is not closed leaves no object.

    def make(self, name: str, data: bytes) -> bool:
        try:
            self._api.put(self._store, name, data, mode="create")
        except (FileExistsError, self._api.exceptions.AlreadyExistsError):
            return False
        return True


class ChangeFiles:
    """A sink of Parquet files in `objects`; `shown` is its name in errors."""

    beat_s = 10.0

    def __init__(self, objects: Objects, shown: str) -> None:
        self.objects, self._shown = objects, shown

    @classmethod
    def open(cls, url: str) -> ChangeFiles:
        """Return the sink at a path or a URL; raise HistoryError if it cannot be reached."""
        try:
            path = path_here(url)
            return cls(Bucket(url) if path is None else Folder(path), url)
        except OSError as error:
            raise HistoryError(f"{url}: {error.strerror or error}") from error

    def position(self) -> int:
        """Return the end of the last range that is in the sink, or 0."""
        ends = [int(found[2], 16) for name in self.objects.names() if (found := _NAME.match(name))]
        beat = self.last_beat()
        return max([*ends, int(Lsn.parse(beat["lsn"])) if beat else 0])

    def last_beat(self) -> dict[str, Any] | None:
        """Return the facts of the last `beat`, or None before the first."""
        data = self.objects.get(BEAT)
        try:
            return None if data is None else dict(json.loads(data))
        except ValueError as error:
            raise HistoryError(f"{self._shown}/{BEAT}: not JSON: {error}") from error

    def claim(self, owner: str) -> None:
        """Claim the sink for the stream `owner`; raise HistoryError if another stream has it."""
        if self.objects.make(CLAIM, owner.encode()):
            return
        found = (self.objects.get(CLAIM) or b"").decode(errors="replace")
        if found != owner:
            raise HistoryError(
                f"{self._shown}/{CLAIM}: another stream, with the state {found}, writes here: name "
                "another --to; if that stream is gone for good, remove this file"
            )

    def refuse_other(self, facts: dict[str, Any]) -> None:
        """Raise HistoryError if the sink has the changes of another cluster or other tables."""
        beat = self.last_beat() or {}
        for name, value in facts.items():
            if beat.get(name, value) != value:
                raise HistoryError(
                    f"{self._shown}: it has changes with {name} {beat[name]!r}, and this stream's "
                    f"is {value!r}: name another --to"
                )

    def keep(self, name: str, text: str) -> str:
        """Write a file with this text unless the file is there; return the text that it has."""
        self.objects.make(name, text.encode())
        return (self.objects.get(name) or b"").decode()

    def put(self, name: str, text: str) -> None:
        """Write a file with this text, in place of an earlier one."""
        self.objects.put(name, text.encode())

    def kept(self, ending: str) -> list[str]:
        """Return the names of files with this ending, without it."""
        names = self.objects.names()
        return [name.removesuffix(ending) for name in names if name.endswith(ending)]

    def write(self, changes: Any, begin: int, end: int) -> None:
        """Write the changes of one range; raise HistoryError if a file has a part of it already."""
        name = f"changes-{begin:016X}-{end:016X}.parquet"
        for other in self.objects.names():
            found = _NAME.match(other)
            if found and int(found[2], 16) > begin:
                raise HistoryError(f"{self._shown}/{other}: another stream writes here")
        try:
            with self.objects.whole(name) as file, _parquet(file, changes.schema) as writer:
                for table in row_groups(changes):
                    writer.write_table(table)
        except OSError as error:
            raise HistoryError(
                f"{self._shown}/{name}: {error}: make room there, and start the stream again"
            ) from error

    def beat(self, end: int, facts: dict[str, Any]) -> None:
        """Write into `position.json` how far the log went."""
        text = json.dumps({"lsn": str(Lsn(end)), **facts}, indent=1)
        self.objects.put(BEAT, text.encode() + b"\n")
