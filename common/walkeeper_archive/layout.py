"""Names in an archive, and their meaning (docs/reference/files.md#archive). Pure.

    <cluster>/<system_id>/<timeline>/<segment>[.zst]                  24 digits, as in pg_wal
    <cluster>/<system_id>/<timeline>/<segment>.<end>.partial[.zst]    the committed part of the tail
    <cluster>/<system_id>/<timeline>/<timeline>.history[.zst]         of the timeline that it names
    …/<one of these>.aes                                              encrypted (sealing.py)
    …/<name without .zst and .aes>.sha256                             its receipt (receipt.py)

`<timeline>` is 8 hexadecimal digits. `<end>` is the LSN where a partial ends, in 16 digits. Other
names are not ours: they are left alone. walkeeper_history reads this layout among others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from walkeeper_common.lsn import Lsn, segment_name
from walkeeper_common.timelines import timeline_file_name

ZSTD_SUFFIX = ".zst"
RECEIPT_SUFFIX = ".sha256"
SEALED_SUFFIX = ".aes"

_NAME = re.compile(
    r"(?P<name>(?P<segment>[0-9A-F]{24})(?:\.(?P<end>[0-9A-F]{16})\.partial)?"
    r"|(?P<timeline>[0-9A-F]{8})\.history)(?P<suffix>\.sha256|(?:\.zst)?(?:\.aes)?)"
)
_CLUSTER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_SYSTEM_ID = re.compile(r"[0-9]{1,20}")
_TIMELINE = re.compile(r"[0-9A-F]{8}")


class Kind(Enum):
    """The role of a file for PostgreSQL."""

    SEGMENT = "segment"
    PARTIAL = "partial"
    HISTORY = "history"


class Packing(Enum):
    """The form of an object's bytes. The value is the suffix of its name."""

    PLAIN = ""
    ZSTD = ZSTD_SUFFIX


@dataclass(frozen=True, slots=True, order=True)
class WalFile:
    """One file by the name it has in the archive, without packing: `name` sorts as WAL does."""

    timeline: int
    name: str

    @property
    def kind(self) -> Kind:
        """The kind that its name shows."""
        if self.name.endswith(".history"):
            return Kind.HISTORY
        return Kind.PARTIAL if self.name.endswith(".partial") else Kind.SEGMENT

    @property
    def folder(self) -> str:
        """The folder of its timeline."""
        return f"{self.timeline:08X}"

    @property
    def path(self) -> str:
        """The path below `<cluster>/<system_id>/`, not packed."""
        return f"{self.folder}/{self.name}"

    @property
    def receipt_path(self) -> str:
        return self.path + RECEIPT_SUFFIX

    @property
    def segment(self) -> str:
        """PostgreSQL's 24 digits; a history has none, which an assertion refuses."""
        assert self.kind is not Kind.HISTORY, f"{self.name=}"
        return self.name[:24]

    @property
    def end_lsn(self) -> Lsn:
        """The end of a partial, which is in its name."""
        assert self.kind is Kind.PARTIAL, f"{self.name=}"
        return Lsn(int(self.name[25:41], 16))

    def begin_lsn(self, segment_bytes: int) -> Lsn:
        """Return where the segment starts."""
        log, offset = int(self.segment[8:16], 16), int(self.segment[16:24], 16)
        return Lsn((log << 32) + offset * segment_bytes)


def segment_file(timeline: int, lsn: Lsn, segment_bytes: int) -> WalFile:
    """Return the file of the whole segment that holds `lsn`."""
    return WalFile(timeline, segment_name(timeline, lsn, segment_bytes))


def partial_file(timeline: int, end_lsn: Lsn, segment_bytes: int) -> WalFile:
    """Return the part of a segment that ends at `end_lsn`, which is not the start of a segment."""
    assert end_lsn % segment_bytes, f"{end_lsn=} is no part of a segment"
    name = segment_name(timeline, end_lsn, segment_bytes)
    return WalFile(timeline, f"{name}.{int(end_lsn):016X}.partial")


def history_file(timeline: int) -> WalFile:
    """Return `0000000N.history`, in the folder of the timeline that it names."""
    return WalFile(timeline, timeline_file_name(timeline))


def file_named(name: str) -> WalFile | None:
    """Return the file of a name as PostgreSQL asks for it or as it is here unpacked, or None."""
    found = _NAME.fullmatch(name)
    if found is None or found["suffix"]:
        return None
    return WalFile(int(name[:8], 16), name)


@dataclass(frozen=True, slots=True)
class ArchivedObject:
    """One object of an archive: a file, packed or not, or a file's receipt."""

    path: str
    """Below `<cluster>/<system_id>/`."""
    size: int
    modified_s: float
    """Unix time at which the store took it."""
    file: WalFile
    packing: Packing
    is_receipt: bool
    is_sealed: bool = False


def parse_object(path: str, size: int, modified_s: float) -> ArchivedObject | None:
    """Return the object at `path` below `<cluster>/<system_id>/`, or None if it is not ours."""
    folder, _, name = path.rpartition("/")
    found = _NAME.fullmatch(name)
    if not _TIMELINE.fullmatch(folder) or found is None or found["name"][:8] != folder:
        return None
    file = WalFile(int(folder, 16), found["name"])
    is_receipt = found["suffix"] == RECEIPT_SUFFIX
    packing = Packing.ZSTD if found["suffix"].startswith(ZSTD_SUFFIX) else Packing.PLAIN
    is_sealed = found["suffix"].endswith(SEALED_SUFFIX)
    return ArchivedObject(path, size, modified_s, file, packing, is_receipt, is_sealed)


def is_cluster_name(name: str) -> bool:
    """Return True if it can be a folder of an archive."""
    return _CLUSTER.fullmatch(name) is not None


def is_timeline(folder: str) -> bool:
    """Return True if a folder below a system's is a timeline's."""
    return _TIMELINE.fullmatch(folder) is not None


def parse_system_id(folder: str) -> int | None:
    """Return the system identifier that a folder below a cluster's stands for, or None."""
    if not _SYSTEM_ID.fullmatch(folder) or str(int(folder)) != folder:
        return None
    return int(folder) if int(folder) < 1 << 64 else None
