"""The failures of an archive. The class tells the caller what to do, never the text."""

from __future__ import annotations

from walkeeper_common.errors import WalkeeperError


class ArchiveError(WalkeeperError):
    """The base. It is unknown whether the requested file is there."""


class ArchiveUnavailable(ArchiveError):
    """The store failed, refused or did not answer: try again later."""


class ArchiveDamaged(ArchiveError):
    """An object is there, but it is not what its receipt or its name says. The text names it."""


class KeyUnknown(ArchiveError):
    """An object's key is not in this process's ring, or the ring has another key of that id."""


class ArchiveConflict(ArchiveError):
    """An object of that name with other content is there. It is never overwritten."""


class ForeignArchive(ArchiveError):
    """The place holds the archive of another database system. No file is written to it."""
