"""The room of the file system under the data directory, sampled on a thread of its own.

A disk that hangs stops the samples, and not the loop.
"""

from __future__ import annotations

import asyncio
import os
from typing import NoReturn

SAMPLE_S = 10.0


class DiskSpace:
    """`free_bytes` and `size_bytes` are None until the first sample, and after a failed one."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.free_bytes: int | None = None
        self.size_bytes: int | None = None

    async def run(self) -> NoReturn:
        """Sample until cancelled."""
        while True:
            await self.sample()
            await asyncio.sleep(SAMPLE_S)

    async def sample(self) -> None:
        """Look once; the time is that of a system call."""
        try:
            room = await asyncio.to_thread(os.statvfs, self._path)
        except OSError:
            self.free_bytes = self.size_bytes = None
            return
        self.free_bytes = room.f_bavail * room.f_frsize
        self.size_bytes = room.f_blocks * room.f_frsize
