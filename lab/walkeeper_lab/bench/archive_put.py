"""`bench archive-put`: MB/s of archiving segments, beside a plain copy or put of them. A shell.

One side does the work of a safekeeper: hash a segment, put it if its name is free, read it back,
compare, put the receipt. The other side is `cp` and fsync, or the store's put alone. Both take the
same files, as many at once, to the same place. Half of each segment is random bytes, and the other
half repeats one line, so that zstd halves the segment. The benchmark removes all files that it has
written.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from walkeeper_archive.archive import Archive
from walkeeper_archive.layout import Packing, WalFile, segment_file
from walkeeper_archive.object_store import ObjectStore
from walkeeper_archive.open_store import local_path, open_store
from walkeeper_common.errors import Refused
from walkeeper_common.lsn import Lsn
from walkeeper_common.operator_text.printable import in_one_line
from walkeeper_lab.bench.pairs import Series, order_of

MB = 1_000_000
SEGMENT_BYTES = 16 << 20
AT_ONCE = 2  # as a safekeeper does
SYSTEM_ID = 7_000_000_000_000_000_001
LINE = b"INSERT INTO pgbench_history VALUES (1, 2, 3, 4) "
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Source:
    """The segments, as files that were just written to the benchmark's disk."""

    paths: Sequence[Path]

    @property
    def size(self) -> int:
        return len(self.paths) * SEGMENT_BYTES


def make_source(directory: Path, segments: int) -> Source:
    """Make `directory`, and write `segments` files into it, each different from the others."""
    directory.mkdir()
    filler = (LINE * (SEGMENT_BYTES // 2 // len(LINE) + 1))[: SEGMENT_BYTES // 2]
    paths = []
    for number in range(1, segments + 1):
        path = directory / f"{number:08X}"
        path.write_bytes(os.urandom(SEGMENT_BYTES // 2) + filler)
        paths.append(path)
    return Source(paths)


class Puts:
    """The sides, which all write to the same place below `url`."""

    title = f"{AT_ONCE} segments of 16 MB at once, half of each random bytes"

    def __init__(self, url: str, source: Source) -> None:
        self._source = source
        store = open_store(url)
        root = local_path(url)
        self._place = (
            f"{store.url if root is None else root}/walkeeper_bench_{secrets.token_hex(4)}"
        )
        self._directory = None if root is None else os.path.expanduser(self._place)
        self.plain = "plain put" if self._directory is None else "cp and fsync"
        if self._directory is not None:
            try:
                os.mkdir(self._directory)
            except OSError as error:
                raise Refused(f"--archive {url}: {error.strerror}") from error
        self.series = Series("archived", "MB/s", more=True)

    @property
    def sides(self) -> list[str]:
        return [self.plain, "walkeeper, zstd", "walkeeper"]

    def run(self, rounds: int, say: Say) -> None:
        """Measure every side once in each round, and then remove all files at `url`'s place."""
        try:
            for number in range(rounds):
                say(f"round {number + 1} of {rounds}")
                for side in order_of(self.sides, number):
                    rate = self._measure(side)
                    self.series.add(side, rate)
                    say(f"{side}: {rate:.0f} MB/s")
        finally:
            self._remove_all(open_store(self._place))
            if self._directory is not None:
                os.rmdir(self._directory)

    def _measure(self, side: str) -> float:
        os.sync()  # the writes of an earlier side must not burden this one
        store = open_store(self._place)
        if side != self.plain:
            packing = Packing.ZSTD if "zstd" in side else Packing.PLAIN
            archive = Archive(store, "bench", SYSTEM_ID)
            spent_s = self._timed(lambda path: _put(archive, path, packing))
        elif (directory := self._directory) is not None:
            spent_s = self._timed(lambda path: _copy(path, directory))
        else:
            spent_s = self._timed(lambda path: _put_plainly(store, path))
        self._remove_all(store)
        return self._source.size / MB / spent_s

    def _timed(self, work: Callable[[Path], None]) -> float:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            began_s = time.monotonic()
            for done in [pool.submit(work, path) for path in self._source.paths]:
                done.result()
            return time.monotonic() - began_s

    def _remove_all(self, store: ObjectStore) -> None:
        for found in list(store.list_from("")):
            store.delete(found.path)
        if self._directory is not None:
            for folder, _, _ in sorted(os.walk(self._directory), reverse=True):
                if folder != self._directory:
                    os.rmdir(folder)


def _file_of(path: Path) -> WalFile:
    return segment_file(1, Lsn(int(path.name, 16) * SEGMENT_BYTES), SEGMENT_BYTES)


def _put(archive: Archive, path: Path, packing: Packing) -> None:
    archive.put(_file_of(path), path.read_bytes(), packing)


def _put_plainly(store: ObjectStore, path: Path) -> None:
    assert store.put_new(path.name, path.read_bytes()), f"{path.name=} was there already"


def _copy(path: Path, directory: str) -> None:
    target = os.path.join(directory, path.name)
    done = subprocess.run(["cp", "--", str(path), target], stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise Refused(in_one_line(done.stderr))
    descriptor = os.open(target, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


async def measure(url: str, directory: Path, segments: int, rounds: int, say: Say) -> Puts:
    """Run all rounds on threads, and return the sides with their figures."""
    source = await asyncio.to_thread(make_source, directory / "segments", segments)
    puts = await asyncio.to_thread(Puts, url, source)
    await asyncio.to_thread(puts.run, rounds, say)
    return puts
