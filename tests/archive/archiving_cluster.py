"""A cluster whose safekeepers archive, and what a test asks of the archive and of them."""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.cluster import Cluster, Daemon, lsn_of
from tests.support.postgres_server import PostgresServer
from tests.support.waiting import LIMIT_S, wait_until
from walkeeper_archive.archive import Archive, archives_at, open_archive
from walkeeper_archive.layout import Kind
from walkeeper_archive.open_store import open_store
from walkeeper_common.lsn import Lsn

FAST_TAIL = ("--archive-tail-interval", "1s")
MESSAGE = "SELECT pg_logical_emit_message(true, 'fill', repeat(md5(random()::text), 16384))"


class HurriedDaemon(Daemon):
    """See hurried.py."""

    command = (sys.executable, "-m", "tests.archive.hurried")


class ArchivingCluster(Cluster):
    """`options` go to every safekeeper, behind --archive URL."""

    def __init__(
        self,
        primary: PostgresServer,
        url: str,
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.url, self.options, self.environment = url, options, environment or {}
        super().__init__(primary)

    @classmethod
    @contextlib.contextmanager
    def archiving(
        cls, primary: PostgresServer, url: str, *options: str, **environment: str
    ) -> Iterator[ArchivingCluster]:
        """Make all parts from nothing, until commits wait for the quorum."""
        cluster = cls(primary, url, options, environment)
        try:
            cluster.start_safekeepers()
            cluster.make_log()
            cluster.proposer.start()
            cluster.attach()
            yield cluster
        finally:
            cluster.close()

    def new_safekeeper(self, number: int, port: int, data_dir: Path | None = None) -> Daemon:
        made = super().new_safekeeper(number, port, data_dir)
        arguments = (*made.arguments, "--archive", self.url, *self.options)
        return HurriedDaemon(made.name, arguments, made.log, environment=self.environment)

    def fill(self, half_megabytes: int) -> None:
        """Commit this much WAL."""
        for _ in range(half_megabytes):
            self.primary.sql(MESSAGE)

    def archived_lsns(self) -> dict[int, int]:
        """Return the archived LSN of each safekeeper that answers, by id."""
        lines: list[dict[str, Any]] = self.status()["safekeepers"]
        return {line["id"]: lsn_of(line["archived_lsn"]) for line in lines if line["reachable"]}

    def archive_of(self, number: int) -> dict[str, Any]:
        """Return that safekeeper's report on its archive."""
        found: dict[str, Any] = self.status()["safekeepers"][number - 1]["archive"]
        return found

    def last_whole(self) -> int:
        """Return the end of the last segment that is committed as a whole."""
        end = lsn_of(self.primary.sql("SELECT pg_current_wal_flush_lsn()"))
        return end - end % self.segment_bytes

    @property
    def segment_bytes(self) -> int:
        return int(self.primary.sql("SELECT pg_size_bytes(current_setting('wal_segment_size'))"))

    def wait_archived(self, timeout_s: float = LIMIT_S) -> int:
        """Wait until each answering safekeeper has all whole segments archived; return the LSN."""
        wanted = self.last_whole()
        wait_until(lambda: min(self.archived_lsns().values()) >= wanted, timeout_s)
        return wanted

    def offloader(self) -> int:
        """Return the id of a safekeeper that archives now; wait while one takes over."""
        return wait_until(self.offloaders)[0]

    def offloaders(self) -> list[int]:
        """Return the ids of those that archive now: two when one has taken over from a slow one."""
        lines = self.status()["safekeepers"]
        return [each["id"] for each in lines if each["archive"] and each["archive"]["offloading"]]

    def oldest_kept(self, number: int) -> int:
        """Return the LSN at which the WAL on that safekeeper's disk starts."""
        return min(start_of(name, self.segment_bytes) for name in digests(self.wal_dir(number)))

    def archive(self) -> Archive:
        """Wait until a file is archived, and return the archive."""
        store = open_store(self.url)
        wait_until(lambda: bool(archives_at(store)))
        return open_archive(self.url)


def digests(folder: Path) -> dict[str, str]:
    """Return the digest of each segment in a directory, also while some of them go."""
    found = {}
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if len(path.name) == 24:
                found[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def archived_digests(archive: Archive) -> dict[str, str]:
    """Return the digest of each whole segment, read through the archive."""
    files = {o.file for o in archive.objects() if o.is_receipt and o.file.kind is Kind.SEGMENT}
    found = {}
    for file in files:
        wal = archive.read(file)
        assert wal is not None, file
        found[file.name] = hashlib.sha256(wal).hexdigest()
    return found


def start_of(name: str, segment_bytes: int) -> Lsn:
    log, offset = int(name[8:16], 16), int(name[16:24], 16)
    return Lsn((log << 32) + offset * segment_bytes)
