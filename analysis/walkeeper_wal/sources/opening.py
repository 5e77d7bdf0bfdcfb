"""Open the files with WAL at a path or a URL.

walkeeper://host:port,…/cluster is the log that safekeepers serve (live.py). Another URL with `://`
goes through obstore (s3://, gs://, az://, memory://), with the configuration from its environment
variables. file:///path and everything else is a local path.
"""

from __future__ import annotations

from pathlib import Path

from walkeeper_archive.open_store import local_path
from walkeeper_common.errors import Refused
from walkeeper_wal.sources.moving_tails import MovingTails
from walkeeper_wal.sources.wal_files import LocalFiles, ObjectFiles, WalFiles
from walkeeper_wal.wal_errors import HistoryError


def open_files(url: str) -> WalFiles:
    """Return the tree at `url`; raise HistoryError if there is none."""
    if url.startswith("walkeeper://"):
        from walkeeper_wal.sources.live import LiveFiles

        return LiveFiles(url)
    local = path_here(url)
    if local is None:
        return MovingTails(ObjectFiles(url))
    path = local.expanduser()
    if not path.exists():
        raise HistoryError(f"{path}: no such file or directory")
    return MovingTails(LocalFiles(path))


def path_here(url: str) -> Path | None:
    """Return the local path that a URL means, or None for an object store's URL.

    Raise HistoryError for a file:// URL that is not of a path here alone.
    """
    try:
        path = local_path(url)
    except Refused as error:
        raise HistoryError(str(error)) from error
    return None if path is None else Path(path)
