"""One cluster's archive: `<url>/<cluster>/<system_id>`.

    open_archive(url, cluster, system_id) -> Archive
    fetch(name, to_path)          one file by PostgreSQL's name: True, or False if surely not there
    fetch_tail(segment, to_path)  the newest committed part of a segment, padded to full size
    put(file, data)               once and for all: uploaded, read back, compared, receipted
    objects()                     the objects that are there

Contract: every call blocks. `fetch` compares a file with its receipt. The file is then whole under
its name, or not there at all. Every failure is an ArchiveError. Only an answer of a store that has
this archive proves absence, so that a wrong URL never looks like the end of the WAL. No object is
ever overwritten. Two safekeepers may put the same file at the same time. The store lets one of them
win. The other one finds its own bytes, or a conflict, which is loud.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum

from walkeeper_archive.archive_errors import (
    ArchiveConflict,
    ArchiveDamaged,
    ArchiveError,
    ArchiveUnavailable,
    ForeignArchive,
)
from walkeeper_archive.layout import (
    ArchivedObject,
    Kind,
    Packing,
    WalFile,
    file_named,
    is_cluster_name,
    is_timeline,
    parse_object,
    parse_system_id,
)
from walkeeper_archive.object_store import ObjectStore
from walkeeper_archive.open_store import open_store
from walkeeper_archive.own_keys import own_keys
from walkeeper_archive.packing import pack, unpack
from walkeeper_archive.receipt import RECEIPT_BYTES_MAX, Receipt, parse_receipt, sha256_of
from walkeeper_archive.sealing import key_id_of, seal, unseal
from walkeeper_common.buffers import Buffer
from walkeeper_common.errors import Refused
from walkeeper_common.history import TIMELINE_FILE_BYTES_MAX
from walkeeper_common.lsn import SEGMENT_BYTES_MAX, Lsn, is_segment_size

ZSTD_LEVEL = 3
TAIL_READS_MAX = 8


class Put(Enum):
    """The result of `put`; either way the file is archived now, verified."""

    STORED = "stored"
    THERE_ALREADY = "there already"


@dataclass(frozen=True, slots=True)
class ArchivePlace:
    """One archive below a URL."""

    cluster: str
    system_id: int


def open_archive(url: str, cluster: str = "main", system_id: int | None = None) -> Archive:
    """Open the cluster's archive, or the cluster's only one if `system_id` is None.

    With a `system_id` no request goes to the store. Raise Refused if the URL is no place for an
    archive or the name is no cluster's. Raise ArchiveError if `system_id` is None and there are
    several archives or none.
    """
    if not is_cluster_name(cluster):
        raise Refused(f"{cluster!r} is no cluster's name: give the --cluster of the log")
    store = open_store(url)
    if system_id is None:
        found = _system_ids(store, cluster)
        if not found:
            raise ArchiveError(f"{store.url} has no archive of cluster {cluster!r}")
        if len(found) > 1:
            shown = ", ".join(map(str, found))
            raise ArchiveError(
                f"{store.url}/{cluster} holds the archives of {len(found)} database systems "
                f"({shown}): choose with --system-id"
            )
        system_id = found[0]
    return Archive(store, cluster, system_id)


def archives_at(store: ObjectStore) -> list[ArchivePlace]:
    """Return every archive below the store's URL, in order.

    A folder with a number for a name is no archive if it has no timeline: many directories have
    such folders.
    """
    return [
        ArchivePlace(cluster, system_id)
        for cluster in store.folders("")
        if is_cluster_name(cluster)
        for system_id in _system_ids(store, cluster)
        if any(is_timeline(folder) for folder in store.folders(f"{cluster}/{system_id}"))
    ]


def _system_ids(store: ObjectStore, cluster: str) -> list[int]:
    parsed = (parse_system_id(folder) for folder in store.folders(cluster))
    return sorted(system_id for system_id in parsed if system_id is not None)


class Archive:
    """One cluster's archive in a store, for one log. Several threads may use it."""

    def __init__(self, store: ObjectStore, cluster: str, system_id: int) -> None:
        self.store, self.cluster, self.system_id = store, cluster, system_id
        self._prefix = f"{cluster}/{system_id}"
        self._known_to_exist = False
        self._keys = own_keys()
        self.segment_bytes = SEGMENT_BYTES_MAX  # a caller that knows the cluster sets its own

    @property
    def url(self) -> str:
        """The URL of this archive, for texts."""
        return f"{self.store.url}/{self._prefix}"

    # Reading

    def fetch(self, name: str, to_path: str) -> bool:
        """Write the segment or history of that name, unpacked, as `to_path`, which it replaces.

        Return False if the archive was seen and does not have it, or if it cannot have such a name.
        Raise ArchiveError if it is unknown whether the file is there. Raise ArchiveDamaged while
        its upload is not finished.
        """
        file = file_named(name)
        data = None if file is None else self.read(file)
        if data is None:
            return False
        _write_whole(to_path, data)
        return True

    def fetch_tail(self, segment: str, to_path: str, segment_bytes: int) -> Lsn | None:
        """Write the committed part of a segment that is not archived whole, from its last partial.

        Zeros follow it, to the size that PostgreSQL asks for. Return the end of that part, or None
        if there is no partial. Raise ArchiveUnavailable if listings go on naming partials that are
        gone.
        """
        for _ in range(TAIL_READS_MAX):
            if (found := self.newest_partial(segment)) is None:
                return None
            data = self.read(found)
            if data is not None:
                _write_whole(to_path, data, bytes(segment_bytes - len(data)))
                return found.end_lsn
            # A later partial has replaced it, or the whole segment has come.
        raise ArchiveUnavailable(
            f"{self.store.url} lists parts of {segment} that are gone, {TAIL_READS_MAX} times now: "
            "its listings are older than its objects. Try again later"
        )

    def newest_partial(self, segment: str) -> WalFile | None:
        """Return the partial of this segment that goes furthest, or None."""
        whole = file_named(segment)
        if whole is None or whole.kind is not Kind.SEGMENT:
            raise Refused(f"{segment!r} is no segment's name")
        newest = None
        for found in self.objects(whole.timeline, after_name=segment):
            if found.file.kind is Kind.HISTORY or found.file.segment != segment:
                break
            if found.file.kind is Kind.PARTIAL and found.is_receipt:
                newest = found.file
        return newest

    def read(self, file: WalFile) -> Buffer | None:
        """Return the content, compared with the receipt, or None if the file is not there."""
        receipt = self.receipt(file)
        if receipt is None:
            if file.kind is not Kind.PARTIAL:  # a partial is replaced and removed all the time
                self._refuse_unfinished(file)
            self._check_exists()
            return None
        shown = self.shown(receipt.object_path)
        data = self._get(receipt.object_path)
        if data is None:
            if self.receipt(file) is None:  # pruned while we read
                return None
            raise ArchiveDamaged(f"{shown} is gone; its receipt is there")
        if sha256_of(data) != receipt.object_sha256:
            raise ArchiveDamaged(f"{shown} ({len(data)} bytes) is not what its receipt says")
        if receipt.key_id is not None:
            data = unseal(data, self._keys, file.name, shown)
        is_history = file.kind is Kind.HISTORY
        size_max = TIMELINE_FILE_BYTES_MAX if is_history else self.segment_bytes
        if len(data) > size_max and receipt.packing is Packing.PLAIN:
            raise ArchiveDamaged(f"{shown}: greater than {size_max} bytes")
        wal = unpack(data, receipt.packing, shown, size_max=size_max)
        if sha256_of(wal) != receipt.wal_sha256:
            raise ArchiveDamaged(f"{shown}: what it unpacks to is not what its receipt says")
        if file.kind is Kind.SEGMENT and not is_segment_size(len(wal)):
            raise ArchiveDamaged(f"{shown}: {len(wal)} bytes are no whole segment")
        return wal

    def receipt(self, file: WalFile) -> Receipt | None:
        """Return the file's receipt, or None if the file is not archived (yet)."""
        data = self._get(file.receipt_path)
        if data is None:
            return None
        try:
            if len(data) > RECEIPT_BYTES_MAX:
                raise ValueError(f"{len(data)} bytes are too many")
            return parse_receipt(file, bytes(data))
        except ValueError as error:
            raise ArchiveDamaged(f"{self.shown(file.receipt_path)}: {error}") from error

    def _refuse_unfinished(self, file: WalFile) -> None:
        for found in self.objects(file.timeline, after_name=file.name[:-1]):
            if found.file > file:
                return
            if found.file == file and not found.is_receipt:
                raise ArchiveDamaged(
                    f"{self.shown(found.path)} has no receipt: its upload is not finished, or it "
                    "is not walkeeper's. See walkeeper archive verify"
                )

    def is_there(self) -> bool:
        """Return True if the store holds this archive: a file was put once."""
        return str(self.system_id) in self.store.folders(self.cluster)

    def _check_exists(self) -> None:
        self._known_to_exist = self._known_to_exist or self.is_there()
        if not self._known_to_exist:
            raise ArchiveError(
                f"{self.store.url} has no archive of cluster {self.cluster!r} with the system "
                f"identifier {self.system_id}"
            )

    def timelines(self) -> list[int]:
        """Return the timelines that have any object, in order."""
        folders = self.store.folders(self._prefix)
        return sorted(int(folder, 16) for folder in folders if is_timeline(folder))

    def objects(
        self, timeline: int | None = None, *, after_name: str = ""
    ) -> Iterator[ArchivedObject]:
        """Yield our objects in order of their paths, and leave out other names.

        With a `timeline`, yield only its objects after `after_name`.
        """
        folder = self._prefix if timeline is None else f"{self._prefix}/{timeline:08X}"
        after = f"{folder}/{after_name}" if after_name else ""
        for found in self.store.list_from(folder, after):
            path = found.path.removeprefix(f"{self._prefix}/")
            parsed = parse_object(path, found.size, found.modified_s)
            if parsed is not None:
                yield parsed

    # Writing

    def refuse_foreign(self) -> bool:
        """Return True if this archive is in the cluster's folder.

        Raise ForeignArchive if another database system's archive is there.
        """
        found = _system_ids(self.store, self.cluster)
        others = [system_id for system_id in found if system_id != self.system_id]
        if others:
            raise ForeignArchive(
                f"{self.store.url}/{self.cluster} holds the archive of another database system "
                f"({', '.join(map(str, others))}; this one is {self.system_id}): give this cluster "
                "another --archive, or move the old archive away"
            )
        return bool(found)

    def put(self, file: WalFile, data: Buffer, packing: Packing = Packing.PLAIN) -> Put:
        """Archive the file: it is in the store, read back, equal and receipted when this returns.

        Raise ArchiveConflict if the name is taken by other content. Raise ArchiveDamaged if the
        store gives back other bytes than it took. Neither changes an object, and a second attempt
        is harmless.
        """
        digest = sha256_of(data)
        receipt = self.receipt(file)
        if receipt is not None:
            self._compare(receipt, digest)
            self.store.sync(f"{self._prefix}/{file.receipt_path}")
            return Put.THERE_ALREADY
        packed, key = pack(data, packing, ZSTD_LEVEL), self._keys.newest
        if key is not None:
            packed = seal(packed, key, file.name)
        receipt = Receipt(file, packing, digest, digest, key.key_id if key is not None else None)
        path = f"{self._prefix}/{receipt.object_path}"
        stored = self.store.put_new(path, packed)
        back_digest = self.store.digest(path)
        if back_digest == (digest if packed is data else sha256_of(packed)):
            receipt = replace(receipt, object_sha256=back_digest)
        else:
            receipt = self._compared(data, receipt, stored=stored)
        if not self.store.put_new(f"{self._prefix}/{file.receipt_path}", receipt.format()):
            other = self.receipt(file)
            if other is None:
                raise ArchiveUnavailable(f"{self.shown(file.receipt_path)} came and went")
            self._compare(other, digest)
        return Put.STORED if stored else Put.THERE_ALREADY

    def delete(self, found: ArchivedObject) -> None:
        """Delete one object. Delete a receipt before its object.

        An interrupted removal then leaves an object that is not archived, and that is no damage.
        """
        self.store.delete(f"{self._prefix}/{found.path}")

    def _compare(self, receipt: Receipt, digest: str) -> None:
        if receipt.wal_sha256 != digest:
            raise ArchiveConflict(
                f"{self.shown(receipt.object_path)} has other content (SHA-256 "
                f"{receipt.wal_sha256[:16]}…) than this log ({digest[:16]}…): two logs write to "
                "one archive, or this log has diverged from it. Nothing was overwritten"
            )

    def _compared(self, data: Buffer, receipt: Receipt, *, stored: bool) -> Receipt:
        """Return the receipt of the object that is there; raise unless it unpacks to the same WAL.

        Another version of zstd may pack it differently. Each encryption differs.
        """
        path, key_id = receipt.object_path, receipt.key_id
        shown, back = self.shown(path), self._get(path)
        if back is None:
            raise ArchiveUnavailable(f"{shown}: the store took it, but does not have it")
        try:
            opened: Buffer = back
            if key_id is not None:
                key_id = key_id_of(back, shown)
                opened = unseal(back, self._keys, receipt.file.name, shown)
            unpacked = unpack(opened, receipt.packing, shown, size_max=self.segment_bytes)
            difference = _difference(unpacked, data)
        except ArchiveDamaged as error:
            difference = str(error)
        if difference is None:
            return replace(receipt, object_sha256=sha256_of(back), key_id=key_id)
        if stored:
            raise ArchiveDamaged(
                f"{shown}: the store took it and gives back other bytes: {difference}"
            )
        raise ArchiveConflict(
            f"{shown} is there with other content and without a receipt: {difference}. Nothing was "
            "overwritten; when you know whose it is, move it away, and it is archived again"
        )

    def _get(self, path: str) -> memoryview | None:
        return self.store.get(f"{self._prefix}/{path}")

    def shown(self, path: str) -> str:
        """Return an object's URL, for texts."""
        return f"{self.url}/{path}"


def _difference(there: Buffer, ours: Buffer) -> str | None:
    if there == ours:
        return None
    if len(there) != len(ours):
        return f"{len(there)} bytes are there, {len(ours)} are ours"
    at = next(i for i, (a, b) in enumerate(zip(there, ours, strict=True)) if a != b)
    return f"the first difference is at byte {at}"


def _write_whole(path: str, *parts: Buffer) -> None:
    """Write a file that has its name only when it is complete; its user syncs it."""
    half_made = f"{path}.{os.getpid()}.tmp"
    try:
        descriptor = os.open(half_made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "wb") as file:
            file.writelines(parts)
        os.rename(half_made, path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(half_made)
        raise ArchiveError(f"writing {path}: {error.strerror or error}") from error
