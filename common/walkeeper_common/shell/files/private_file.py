"""Write a file with secrets: of mode 0600, whole or not at all, and durably."""

from __future__ import annotations

import os
from contextlib import suppress

from walkeeper_common.errors import Refused
from walkeeper_common.shell.files.sync_path import sync_path


def write_private(path: str, content: bytes) -> None:
    """Write a file of mode 0600, durably, in the place of an older one. Raise Refused."""
    unfinished = f"{path}.new"
    with suppress(FileNotFoundError):
        os.unlink(unfinished)
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
        sync_path(os.path.dirname(os.path.abspath(path)))
    except OSError as error:
        raise Refused(f"cannot write {path}: {error.strerror}") from error
