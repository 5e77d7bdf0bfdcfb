"""A check, by strace: a safekeeper acknowledges only what an fdatasync that has returned covers.

    claims = acknowledged_too_early(trace.splitlines(), creation_lsn)

Reads the output of `strace -f -y -xx -s 256 -e trace=…`. Writes to segment files move the written
end of a segment. An fdatasync that returned makes durable the bytes that were written when it
began. Each AppendResponse that is sent is compared with the durable end at that time. Others may
interrupt a call. It then counts from its "unfinished" line when it sends, and from its "resumed"
line when it syncs: the strict reading in both cases.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from struct import Struct

TRACED = "pwrite64,pwritev,pwritev2,fdatasync,fsync,sendto,sendmsg,write,writev"
# The product's own frame: length, tag, then generation, term, proposer id, flush_lsn.
HEAD = Struct("!IB")
APPEND_RESPONSE_TAG = ord("A")
APPEND_RESPONSE = Struct("!IQ16sQQQQQ")
FLUSH_LSN_FIELD = 3

SENDING = ("sendto", "sendmsg", "write", "writev")
UNFINISHED = " <unfinished ...>"

_CALL = re.compile(r"^(\d+) +(\w+)\((.*)$")
_RESUMED = re.compile(r"^(\d+) +<\.\.\. (\w+) resumed>(.*)$")
_DESCRIPTOR = re.compile(r"^\d+<([^>]*)>")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_RETURNED = re.compile(r"\)\s+= (-?\d+)")
_POSITION = re.compile(r", (\d+)(?:, 0)?\)\s+= ")  # after it, pwritev2 has flags
_SEGMENT = re.compile(r"/([0-9A-F]{8})([0-9A-F]{8})([0-9A-F]{8})$")


@dataclass
class _Disk:
    """How far each segment is written; the durable end, which the segments reach one by one."""

    segment_bytes: int
    durable_end: int
    written: dict[str, int] = field(default_factory=dict)
    syncing: dict[str, int] = field(default_factory=dict)
    syncs: int = 0

    def on_written(self, path: str, end_in_segment: int) -> None:
        found = _SEGMENT.search(path)
        if found is not None:
            start = (int(found[2], 16) << 32) + int(found[3], 16) * self.segment_bytes
            self.written[path] = start + end_in_segment

    def on_sync_begun(self, thread: str, path: str) -> None:
        """Note which bytes the sync covers: those written by now, not until it returns."""
        self.syncing[thread] = self.written.get(path, 0)

    def on_synced(self, thread: str) -> None:
        self.durable_end = max(self.durable_end, self.syncing.pop(thread, 0))
        self.syncs += 1


@dataclass(frozen=True)
class Found:
    """A trace's findings. `early` has (flush_lsn acknowledged, durable end at that time)."""

    acknowledgements: int
    syncs: int
    early: list[tuple[int, int]]


def acknowledged_too_early(lines: Iterable[str], segment_bytes: int, durable_lsn: int) -> Found:
    """Check a trace; the safekeeper had `durable_lsn` when it began."""
    disk = _Disk(segment_bytes, durable_end=durable_lsn)
    early: list[tuple[int, int]] = []
    acknowledgements = 0
    unfinished: dict[str, str] = {}
    for line in lines:
        if resumed := _RESUMED.match(line):
            thread, name, rest = resumed.groups()
            _on_return(disk, thread, name, unfinished.pop(thread, "") + rest)
        elif call := _CALL.match(line):
            thread, name, rest = call.groups()
            if name == "fdatasync":
                disk.on_sync_begun(thread, _path_of(rest))
            for flush_lsn in _acknowledged_by(line):
                acknowledgements += 1
                if flush_lsn > disk.durable_end:
                    early.append((flush_lsn, disk.durable_end))
            if rest.endswith(UNFINISHED):
                unfinished[thread] = rest.removesuffix(UNFINISHED)
            else:
                _on_return(disk, thread, name, rest)
    return Found(acknowledgements, disk.syncs, early)


def _on_return(disk: _Disk, thread: str, name: str, rest: str) -> None:
    """Take a call's return; `rest` has the call's arguments and its result."""
    returned = _RETURNED.search(rest)
    if returned is None:
        return
    if name == "fdatasync" and int(returned[1]) == 0:
        disk.on_synced(thread)
    elif name.startswith("pwrite") and (position := _POSITION.search(rest)):
        disk.on_written(_path_of(rest), int(position[1]) + int(returned[1]))


def _path_of(rest: str) -> str:
    """Return the path of the descriptor that is the call's first argument."""
    found = _DESCRIPTOR.match(rest)
    return _unescaped(found[1]).decode(errors="replace") if found else ""


def _unescaped(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


def _acknowledged_by(line: str) -> list[int]:
    """Return the flush_lsns of the AppendResponses that this call sends."""
    call = _CALL.match(line)
    if call is None or call[2] not in SENDING or not _path_of(call[3]).startswith("socket:"):
        return []
    return acknowledged_lsns(b"".join(_unescaped(s) for s in _STRING.findall(call[3])))


def acknowledged_lsns(data: bytes) -> list[int]:
    """Return the flush_lsns of the AppendResponses in a piece that begins with a frame."""
    found, at = [], 0
    while at + HEAD.size <= len(data):
        length, tag = HEAD.unpack_from(data, at)
        body = at + HEAD.size
        if tag == APPEND_RESPONSE_TAG and body + APPEND_RESPONSE.size <= len(data):
            assert length == 1 + APPEND_RESPONSE.size, f"{length=}"
            found.append(APPEND_RESPONSE.unpack_from(data, body)[FLUSH_LSN_FIELD])
        at += 4 + length
    return found


def with_syncs_behind_the_acknowledgements(lines: Iterable[str]) -> list[str]:
    """Return the trace of a safekeeper that acknowledges first and syncs then."""
    held: list[str] = []
    doctored: list[str] = []
    said = 0
    for line in lines:
        if "fdatasync" in line:
            held.append(line)
            continue
        doctored.append(line)
        if (now := max(_acknowledged_by(line), default=0)) > said:
            said = now
            doctored += held
            held = []
    return doctored + held
