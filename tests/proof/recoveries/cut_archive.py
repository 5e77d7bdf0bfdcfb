"""A copy of archived WAL that ends at an LSN, as if the server had written no more.

cut_archive(archive, target, lsn) -> target         the directories hold one timeline
"""

from __future__ import annotations

from pathlib import Path


def cut_archive(archive: Path, target: Path, lsn: int) -> Path:
    """Copy the WAL before `lsn`, which is the end of a record. Zeros follow in its segment."""
    target.mkdir()
    for path in sorted(each for each in archive.iterdir() if len(each.name) == 24):
        data = path.read_bytes()
        per_log = (1 << 32) // len(data)
        first = (int(path.name[8:16], 16) * per_log + int(path.name[16:], 16)) * len(data)
        if first < lsn:
            (target / path.name).write_bytes(data[: lsn - first].ljust(len(data), b"\0"))
    return target
