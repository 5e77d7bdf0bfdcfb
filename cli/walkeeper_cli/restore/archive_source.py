"""Where else WAL may be: what `restore` needs of an archive. A port; the archive fits it."""

from __future__ import annotations

from typing import Protocol


class WalSource(Protocol):
    """An archive of one log."""

    def fetch(self, name: str, path: str) -> bool:
        """A whole segment or a .history file, verified, decompressed, written to `path`.

        False only if the archive was asked and does not have it. Whatever it raises means that
        this is not known. `path` is a temporary file: it need be neither atomic nor synced.
        """
        ...
