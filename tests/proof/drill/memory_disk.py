"""A small disk of a safekeeper or of the archive: it can be filled, and made read-only."""

from __future__ import annotations

from pathlib import Path

from tests.proof.chaos.loop_disk import LoopDisk
from tests.proof.chaos.namespaces import run

SIZE_BYTES = 256 << 20


class MemoryDisk(LoopDisk):
    """A tmpfs of this size. It is made and filled sooner than a file system on a loop device."""

    def __init__(self, image: Path, mount_point: Path, size_bytes: int = SIZE_BYTES) -> None:
        super().__init__(image, mount_point)
        self._size_bytes = size_bytes

    def make(self) -> None:
        self.mount_point.mkdir()
        self.mount()

    def mount(self) -> None:
        run(
            "mount",
            "-t",
            "tmpfs",
            "-o",
            f"size={self._size_bytes},mode=755",
            "tmpfs",
            str(self.mount_point),
        )

    def make_read_only(self) -> None:
        run("mount", "-o", "remount,ro", str(self.mount_point))

    def make_writable(self) -> None:
        run("mount", "-o", "remount,rw", str(self.mount_point))

    def move(self, elsewhere: Path) -> None:
        """Mount it elsewhere, as if its place were gone."""
        run("mount", "--move", str(self.mount_point), str(elsewhere))

    def move_back(self, elsewhere: Path) -> None:
        run("mount", "--move", str(elsewhere), str(self.mount_point))
