"""The saved state of a change stream is of one scope, and is read whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from walkeeper_replay.change_windows import ChangeStream, Scope
from walkeeper_wal.errors import HistoryError

OURS, OTHERS = Scope(("orders",), "postgres"), Scope(("late",), "postgres")


def test_a_state_of_another_scope_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    ChangeStream(OURS).save(path)
    assert ChangeStream.load(path, OURS).scope == OURS
    with pytest.raises(HistoryError, match="was begun for other tables"):
        ChangeStream.load(path, OTHERS)


def test_a_damaged_state_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    ChangeStream(OURS).save(path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(HistoryError, match="damaged"):
        ChangeStream.load(path, OURS)
