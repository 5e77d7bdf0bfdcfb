"""Guard a job that calls a library of an archive's store. Only WalkeeperErrors leave it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from walkeeper_archive.archive_errors import ArchiveError
from walkeeper_common.errors import WalkeeperError

logger = logging.getLogger("walkeeper.archive")

T = TypeVar("T")


def without_defects(job: Callable[[], T]) -> Callable[[], T]:
    """Guard a job. A defect of a store's library must not end a process that acknowledges."""

    def guarded() -> T:
        try:
            return job()
        except WalkeeperError:
            raise
        except Exception as error:
            logger.exception("a job of an archive failed by a defect")
            raise ArchiveError(f"internal error: {error!r}; the log says more") from error

    return guarded
