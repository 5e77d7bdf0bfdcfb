"""fsync by name: a directory whose new names are to outlive a power cut, or a file. Blocks."""

from __future__ import annotations

import os


def sync_path(path: str | os.PathLike[str]) -> None:
    """Sync the file or directory; raise OSError if it is not there or its disk failed."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
