"""The folder of a stream's state, which one stream at a time may use, and its name. A shell."""

from __future__ import annotations

import fcntl
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from walkeeper_wal.wal_errors import HistoryError

STATE = "stream.state"
_IS_NAME = re.compile("[0-9a-f]{32}")


@contextmanager
def only_one(state: Path) -> Iterator[None]:
    """Hold the lock of a state's folder; raise HistoryError if another stream has it."""
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (state / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HistoryError(
                f"{state}: another stream uses this state: stop it, or name another folder"
            ) from None
        yield


def name_of(state: Path) -> str:
    """Return the name of a state, which no other one has. It is made with the state."""
    path = state / "name"
    found = path.read_text() if path.exists() else ""
    if not _IS_NAME.fullmatch(found):
        found = uuid4().hex
        path.write_text(found)
    return found
