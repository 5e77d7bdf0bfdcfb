"""A temporary directory whose subdirectories ext4 spreads over the disk.

    with temporary_files_spread():      tempfile and all child processes use it

A server of a test makes a thousand files, and its end deletes them. ext4 puts the directories of
one parent side by side. Without a journal it does not reuse an inode for minutes after its
deletion. So each new file looks at all inodes that earlier tests deleted there. That took half
of the kernel's time: 270 ms for one copy of a data directory, and 73 ms of spread ones.

The flag `T` of chattr says that subdirectories have nothing in common. On other file systems the
directory is an ordinary one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

# linux/fs.h: FS_IOC_GETFLAGS, FS_IOC_SETFLAGS and FS_TOPDIR_FL.
GET_FLAGS, SET_FLAGS, TOP_OF_HIERARCHIES = 0x80086601, 0x40086602, 0x20000
FLAGS = struct.Struct("i")
# Each directory of pytest's own stays where its next run looks for old ones.
PYTEST_DIRECTORY = "PYTEST_DEBUG_TEMPROOT"


@contextlib.contextmanager
def temporary_files_spread() -> Iterator[Path]:
    """Put all temporary files into a new directory, which is removed at the end."""
    before, environment = tempfile.tempdir, os.environ.copy()
    usual = tempfile.gettempdir()
    # A short name: it is part of the paths of sockets, which have at most 107 bytes.
    directory = Path(tempfile.mkdtemp(prefix="wk_"))
    directory.chmod(0o1777)  # PostgreSQL's programs run as another user
    spread(directory)
    os.environ.setdefault(PYTEST_DIRECTORY, usual)
    tempfile.tempdir = os.environ["TMPDIR"] = str(directory)
    try:
        yield directory
    finally:
        tempfile.tempdir = before
        for name in ("TMPDIR", PYTEST_DIRECTORY):
            os.environ.pop(name)
            os.environ.update({name: environment[name]} if name in environment else {})
        shutil.rmtree(directory, ignore_errors=True)


def spread(directory: Path) -> None:
    """Set the flag `T` of a directory; do nothing where its file system has none."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):
            flags = _flags(descriptor)
            fcntl.ioctl(descriptor, SET_FLAGS, FLAGS.pack(flags | TOP_OF_HIERARCHIES))
    finally:
        os.close(descriptor)


def _flags(descriptor: int) -> int:
    data = fcntl.ioctl(descriptor, GET_FLAGS, FLAGS.pack(0))
    return int(FLAGS.unpack(data)[0])
