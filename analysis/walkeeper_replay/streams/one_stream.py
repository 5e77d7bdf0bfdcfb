"""The folder of a stream's state, which one stream at a time may use."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from walkeeper_wal.wal_errors import HistoryError

STATE = "stream.state"


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
