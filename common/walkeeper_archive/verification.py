"""A comparison of every byte in an archive: it yields the problems and changes no object.

    survey(archive) -> Contents         lists, and finds out how large segments are
    verify(archive, contents, …)        problems, one a line of text, as they are found

A file is right when three things hold:

* its object unpacks to the content that its receipt says;
* it has the size that its name says;
* WAL begins with a page of this database system at the position in its name.

In a logical log's segment each frame's CRC and place are checked instead of that page. Several
threads read the files. Each file is in memory while it is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

from walkeeper_archive.archive import Archive
from walkeeper_archive.archive_contents import Contents, contents_of, gaps
from walkeeper_archive.archive_errors import ArchiveDamaged, ArchiveError
from walkeeper_archive.layout import ArchivedObject, Kind, Packing, WalFile, history_file
from walkeeper_common.buffers import Buffer
from walkeeper_common.entries import EntryWalk, is_of_entries
from walkeeper_common.lsn import Lsn, is_segment_size
from walkeeper_common.postgres.walformat import InvalidWal
from walkeeper_common.postgres.walpages import LONG_HEADER_BYTES, page_header
from walkeeper_common.timelines import checked_timeline_file

SEGMENT_BYTES_DEFAULT = 16 << 20


@dataclass(frozen=True, slots=True)
class Problem:
    """One flaw, in `file`, or between files if that is None."""

    text: str
    file: WalFile | None = None


def survey(archive: Archive) -> Contents:
    """List the archive; raise ArchiveError if there is none.

    Read one segment if all are packed, or if their sizes differ.
    """
    objects = list(archive.objects())
    if not objects and not archive.is_there():
        raise ArchiveError(f"there is no archive at {archive.url}")
    return contents_of(objects, segment_bytes_of(archive, objects) or SEGMENT_BYTES_DEFAULT)


def segment_bytes_of(archive: Archive, objects: Sequence[ArchivedObject]) -> int | None:
    """Return the size that all plain segments have, else that of one that matches its receipt.

    Return None if no segment tells. The first segment's size alone does not: all positions depend
    on it, and a copy that was cut off has any size.
    """
    whole = [found for found in objects if found.file.kind is Kind.SEGMENT]
    plain = [f.size for f in whole if not f.is_receipt and _is_bare(f)]
    if len(set(plain)) == 1 and is_segment_size(plain[0]):
        return plain[0]
    for found in whole:
        if found.is_receipt:
            try:
                wal = archive.read(found.file)
            except ArchiveDamaged:
                continue
            if wal is not None:
                return len(wal)
    return None


def _is_bare(found: ArchivedObject) -> bool:
    """Return True if the object's size is the file's."""
    return found.packing is Packing.PLAIN and not found.is_sealed


def verify(
    archive: Archive,
    contents: Contents,
    *,
    jobs: int = 4,
    read_all: bool = True,
    on_read: Callable[[int], None] = lambda size: None,
) -> Iterator[Problem]:
    """Yield the problems, and call `on_read` with the size of each file that was read.

    Without `read_all` only names and histories are checked.
    """
    for file in contents.without_object:
        yield Problem(f"{archive.shown(file.path)} is gone; its receipt is there", file)
    histories = {}
    for timeline, part in sorted(contents.timelines.items()):
        if part.has_history:
            try:
                histories[timeline] = checked_timeline_file(
                    bytes(archive.read(history_file(timeline)) or b"")
                )
            except (ArchiveDamaged, ValueError) as error:
                yield Problem(f"{history_file(timeline).name}: {error}", history_file(timeline))
    for text in gaps(contents, histories):
        yield Problem(text)
    if read_all:
        yield from _read_all(archive, contents, jobs, on_read)


def _read_all(
    archive: Archive, contents: Contents, jobs: int, on_read: Callable[[int], None]
) -> Iterator[Problem]:
    files = iter(contents.files())
    with ThreadPoolExecutor(jobs, thread_name_prefix="verify") as pool:

        def start(file: WalFile) -> tuple[WalFile, Future[tuple[int, str | None]]]:
            return file, pool.submit(_examine, archive, file, contents.segment_bytes)

        waiting = [start(file) for file in islice(files, 2 * jobs)]
        try:
            while waiting:
                file, future = waiting.pop(0)
                size, problem = future.result()
                waiting += [start(next_file) for next_file in islice(files, 1)]
                on_read(size)
                if problem is not None:
                    yield Problem(problem, file)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _examine(archive: Archive, file: WalFile, segment_bytes: int) -> tuple[int, str | None]:
    """Return (bytes read, the reason why the file is wrong or None)."""
    try:
        data = archive.read(file)
    except ArchiveDamaged as error:
        return 0, None if _is_removed(archive, file) else str(error)
    if data is None:
        return 0, None
    wrong = None if file.kind is Kind.HISTORY else flaw_of(archive, file, data, segment_bytes)
    return len(data), None if wrong is None else f"{archive.shown(file.path)}: {wrong}"


def _is_removed(archive: Archive, file: WalFile) -> bool:
    """Return True if it was pruned after the survey, or is a tail that a later one has replaced.

    A receipt is removed before its object, so an object alone may be half of a removal.
    """
    try:
        return archive.receipt(file) is None
    except ArchiveDamaged:
        return False


def flaw_of(archive: Archive, file: WalFile, wal: Buffer, segment_bytes: int) -> str | None:
    """Return why WAL does not fit its own name, or None."""
    begin_lsn = file.begin_lsn(segment_bytes)
    size = segment_bytes if file.kind is Kind.SEGMENT else file.end_lsn - begin_lsn
    if len(wal) != size:
        return f"{len(wal)} bytes, and its name stands for {size}"
    if is_of_entries(wal):
        return _flaw_of_entries(wal, begin_lsn, segment_bytes)
    if len(wal) < LONG_HEADER_BYTES:
        return None
    header = page_header(wal)
    if header.system_id != archive.system_id:
        return f"it is WAL of the database system {header.system_id}"
    if header.page_lsn != begin_lsn:
        return f"its first page says that it is at {header.page_lsn}, not at {begin_lsn}"
    if header.timeline > file.timeline:
        return f"its first page is of timeline {header.timeline}"
    return None


class _OneFile:
    """One file's bytes, for EntryWalk."""

    def __init__(self, data: Buffer, begin: Lsn) -> None:
        self._data, self._begin = memoryview(data), begin

    def read(self, begin: Lsn, end: Lsn) -> bytes:
        return bytes(self._data[begin - self._begin : end - self._begin])


def _flaw_of_entries(data: Buffer, begin: Lsn, segment_bytes: int) -> str | None:
    """Return why a logical log's segment is wrong, or None: its frames tell by themselves."""
    walk = EntryWalk(_OneFile(data, begin), begin, begin + len(data), segment_bytes)
    try:
        walk.last_record()
    except InvalidWal as error:
        return str(error)
    return None
