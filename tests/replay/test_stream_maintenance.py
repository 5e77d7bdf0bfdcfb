"""A stream's maintenance of its lake: when it runs, what it says, and the option --retention."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.replay.test_table_maintenance import HOUR, catalog_in
from walkeeper_cli.commands.history_replay import KeptFor
from walkeeper_cli.history.stream import retention_of
from walkeeper_cli.history.stream_maintenance import EVERY_S, REST, StreamMaintenance
from walkeeper_cli.program import run
from walkeeper_history.change_files import ChangeFiles
from walkeeper_replay.lakes.lake_tables import DeltaChanges, IcebergChanges
from walkeeper_replay.lakes.table_maintenance import Maintained, Retention
from walkeeper_wal.wal_errors import HistoryError

pytest.importorskip("deltalake", reason="pip install 'walkeeper[lake]'")
pytest.importorskip("pyiceberg", reason="pip install 'walkeeper[lake]'")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
Output = pytest.CaptureFixture[str]


def test_a_retention_is_the_default_or_a_time_or_off(tmp_path: Path, capsys: Output) -> None:
    delta = DeltaChanges(str(tmp_path / "changes"))
    iceberg_changes = IcebergChanges("lake", "db.changes", opened=catalog_in(tmp_path))
    assert retention_of(delta, None) == Retention(86_400, is_asked=False)
    assert retention_of(iceberg_changes, None) == Retention(3600, is_asked=False)
    assert retention_of(delta, 7200.0) == Retention(7200)
    assert not capsys.readouterr().err
    assert retention_of(delta, 0.0) is None
    assert "--retention off: files that are replaced stay in the lake" in capsys.readouterr().err
    files = ChangeFiles.open(str(tmp_path / "files"))
    assert retention_of(files, None) is None
    with pytest.raises(HistoryError, match="--retention is for delta: and iceberg:"):
        retention_of(files, 7200.0)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0", "would remove files while a query reads them"),
        ("59s", "name a time of at least 1min, or off for no maintenance"),
        ("never", "is not a duration such as 60s or 5min"),
    ],
    ids=["none", "short", "no duration"],
)
def test_a_retention_under_which_queries_fail_is_refused(
    tmp_path: Path, capsys: Output, text: str, why: str
) -> None:
    code = run(["history", "stream", "--path", str(tmp_path), "--to", f"delta:{tmp_path}/to",
                "--state", str(tmp_path / "state"), "--retention", text])  # fmt: skip
    assert code == 2 and why in capsys.readouterr().err
    assert KeptFor().convert("1min", None, None) == 60 and KeptFor().convert("off", None, None) == 0


# Times


class FakeLake:
    """Two tables, and a clock that their maintenance takes time of."""

    retention_s = 60

    def __init__(self) -> None:
        self.now_s, self.took_s = 1000.0, 1.0
        self.done: list[str] = []
        self.names = ["a", "b"]
        self.answer: Maintained | Exception = Maintained()

    def tables(self) -> list[str]:
        return self.names

    def maintain(self, name: str, retention: Retention, now_s: float) -> Maintained:
        self.done.append(name)
        self.now_s += self.took_s
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def maintenance(self, path: Path) -> StreamMaintenance:
        return StreamMaintenance(self, HOUR, path, lambda: self.now_s)


def test_a_table_is_maintained_each_ten_minutes_in_a_tenth_of_the_time(tmp_path: Path) -> None:
    lake = FakeLake()
    maintenance = lake.maintenance(tmp_path / "times")
    maintenance.advance()
    maintenance.advance()
    assert lake.done == ["a"]
    lake.now_s += REST * lake.took_s
    maintenance.advance()
    assert lake.done == ["a", "b"]
    lake.now_s = 1000.0 + EVERY_S
    maintenance.advance()
    assert lake.done == ["a", "b"]
    lake.now_s += lake.took_s
    maintenance.advance()
    assert lake.done == ["a", "b", "a"]


def test_the_times_of_maintenance_survive_a_restart(tmp_path: Path) -> None:
    lake = FakeLake()
    lake.maintenance(tmp_path / "times").finish()
    assert lake.done == ["a", "b"]
    lake.maintenance(tmp_path / "times").finish()
    assert lake.done == ["a", "b"]
    lake.now_s = 5.0  # The clock was set back.
    lake.maintenance(tmp_path / "times").finish()
    assert lake.done == ["a", "b"] * 2
    (tmp_path / "times").write_text("[1")
    lake.maintenance(tmp_path / "times").finish()
    assert lake.done == ["a", "b"] * 3


def test_a_failure_of_maintenance_is_told_and_ends_nothing(tmp_path: Path, capsys: Output) -> None:
    lake = FakeLake()
    lake.answer = OSError("no room")
    lake.maintenance(tmp_path / "times").finish()
    told = capsys.readouterr().err
    assert "a: its maintenance failed, and is tried again in 10 minutes: no room" in told
    assert lake.done == ["a", "b"]
    lake.answer = Maintained(1, 40, 2, 3, "a remark")
    lake.now_s += EVERY_S
    maintenance = lake.maintenance(tmp_path / "times")
    maintenance.finish()
    lake.now_s += EVERY_S
    maintenance.finish()
    told = capsys.readouterr().err
    assert told.count("a: 40 files merged into 2, 3 snapshots expired, 1 file removed\n") == 2
    assert told.count("a: a remark") == 1
