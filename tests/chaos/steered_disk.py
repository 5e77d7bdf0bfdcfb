"""The disk of a safekeeper that can be made slow, failing or lying while it runs.

    disk = SteeredDisk(directory, library)       library: compiled_library(directory)
    environment |= disk.environment()            the environment of the process
    disk.slow(50); disk.fail_syncs(match="/wal/"); disk.well()

disk_faults.c is preloaded into the process. This side and that process map one small file.
"""

from __future__ import annotations

import mmap
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).parent / "disk_faults.c"
LAYOUT = struct.Struct("=4I3I228s")
ORDERS = struct.Struct("=4I")
COUNTS = struct.Struct("=3I")
MATCH_BYTES_MAX = 227
COMPILE_S = 60


def compiled_library(directory: Path) -> Path:
    """Compile disk_faults.c into a shared library there, and return its path."""
    library = directory / "disk_faults.so"
    command = ["gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run(
        [*command, "-o", str(library), str(SOURCE), "-ldl"], check=True, timeout=COMPILE_S
    )
    return library


class SteeredDisk:
    """A disk that is well until an order changes it, from the next system call on."""

    def __init__(self, file: Path, library: Path) -> None:
        self._file, self._library = file, library
        file.write_bytes(bytes(LAYOUT.size))
        with file.open("r+b") as opened:
            self._map = mmap.mmap(opened.fileno(), LAYOUT.size)

    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "CHAOS_DISK": str(self._file)}

    def slow(self, delay_ms: int, *, match: str = "") -> None:
        """Make every sync take so much longer."""
        self._order(match, delay_ms=delay_ms)

    def fail_syncs(self, count: int = 1, *, match: str = "") -> None:
        """Let the next syncs fail with EIO and sync nothing."""
        self._order(match, fail_syncs=count)

    def fail_writes(self, count: int = 1, *, match: str = "") -> None:
        self._order(match, fail_writes=count)

    def lie(self, *, match: str = "") -> None:
        """Let syncs succeed and do nothing."""
        self._order(match, lie=1)

    def well(self) -> None:
        self._order("")

    @property
    def delayed(self) -> int:
        return self._counts()[0]

    @property
    def failed(self) -> int:
        return self._counts()[1]

    @property
    def lied(self) -> int:
        return self._counts()[2]

    def _order(
        self, match: str, delay_ms: int = 0, fail_syncs: int = 0, fail_writes: int = 0, lie: int = 0
    ) -> None:
        name = match.encode()
        assert len(name) <= MATCH_BYTES_MAX, f"{match=}"
        # No order is in force while its path changes.
        ORDERS.pack_into(self._map, 0, 0, 0, 0, 0)
        at = ORDERS.size + COUNTS.size
        self._map[at : at + MATCH_BYTES_MAX + 1] = name.ljust(MATCH_BYTES_MAX + 1, b"\0")
        ORDERS.pack_into(self._map, 0, delay_ms, fail_syncs, fail_writes, lie)

    def _counts(self) -> tuple[int, int, int]:
        delayed, failed, lied = COUNTS.unpack_from(self._map, ORDERS.size)
        return delayed, failed, lied
