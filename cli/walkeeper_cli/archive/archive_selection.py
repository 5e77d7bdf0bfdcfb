"""The archives that `walkeeper archive` opens: by URL, and by cluster and system if given."""

from __future__ import annotations

import sys

import click

from walkeeper_archive.archive import Archive, archives_at
from walkeeper_archive.archive_errors import ArchiveError
from walkeeper_archive.open_store import open_store
from walkeeper_common.operator_text.counts import counted


def opened(url: str, cluster: str | None, system_id: int | None) -> list[Archive]:
    """Return all archives that match; raise ArchiveError if there is none."""
    store = open_store(url)
    found = [
        Archive(store, place.cluster, place.system_id)
        for place in archives_at(store)
        if cluster in (None, place.cluster) and system_id in (None, place.system_id)
    ]
    if not found:
        which = "" if cluster is None else f" of cluster {cluster!r}"
        which += "" if system_id is None else f" with the system identifier {system_id}"
        raise ArchiveError(
            f"{store.url} has no archive{which}: an archive is URL/CLUSTER/SYSTEM_ID/TIMELINE/…, "
            "and URL is the --archive of the safekeepers"
        )
    return found


def only(url: str, cluster: str | None, system_id: int | None) -> Archive:
    """Return the one archive that matches; raise ArchiveError if there are several, or none."""
    found = opened(url, cluster, system_id)
    if len(found) > 1:
        shown = ", ".join(f"{archive.cluster}/{archive.system_id}" for archive in found)
        raise ArchiveError(f"{url} has {len(found)} archives ({shown}): add --cluster, --system-id")
    return found[0]


class Progress:
    """The progress on stderr: one line that changes on a terminal, or one line at the end."""

    def __init__(self, what: str, total: int, *, quiet: bool) -> None:
        self._what, self._total, self._quiet = what, total, quiet
        self._done = self._bytes = 0
        self._is_live = sys.stderr.isatty() and not quiet

    def add(self, size: int) -> None:
        """Count one more file, of `size` bytes."""
        self._done, self._bytes = self._done + 1, self._bytes + size
        if self._is_live:
            click.echo(f"\r{self._line()}", nl=False, err=True)

    def clear(self) -> None:
        """Clear the line on a terminal, before the caller writes a line to stdout."""
        if self._is_live:
            click.echo("\r\x1b[K", nl=False, err=True)

    def end(self) -> None:
        if not self._quiet:
            click.echo(f"\r{self._line()}" if self._is_live else self._line(), err=True)

    def _line(self) -> str:
        total = counted(self._total, "file", "files")
        return f"{self._what}: {self._done} of {total}, {self._bytes / 1e6:,.0f} MB"
