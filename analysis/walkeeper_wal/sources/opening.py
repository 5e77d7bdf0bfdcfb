"""Open the files with WAL at a path or a URL.

walkeeper://host:port,…/cluster is the log that safekeepers serve (live.py). Another URL with `://`
goes through obstore (s3://, gs://, az://, file://, memory://), with the configuration from its
environment variables. Everything else is a local path.
"""

from __future__ import annotations

from pathlib import Path

from walkeeper_wal.sources.moving_tails import MovingTails
from walkeeper_wal.sources.wal_files import LocalFiles, ObjectFiles, WalFiles
from walkeeper_wal.wal_errors import HistoryError


def open_files(url: str) -> WalFiles:
    """Return the tree at `url`; raise HistoryError if there is none."""
    if url.startswith("walkeeper://"):
        from walkeeper_wal.sources.live import LiveFiles

        return LiveFiles(url)
    if "://" in url and not url.startswith("file://"):
        return MovingTails(ObjectFiles(url))
    path = Path(url.removeprefix("file://")).expanduser()
    if not path.exists():
        raise HistoryError(f"{path}: no such file or directory")
    return MovingTails(LocalFiles(path))
