"""The random comparison with recoveries: its clock, its judge, and one seed of it."""

from __future__ import annotations

from pathlib import Path
from random import Random
from struct import pack

import pytest

from tests.history.made_wal import write_segments
from tests.proof.recoveries import seed_comparison
from tests.proof.recoveries.__main__ import main
from tests.proof.recoveries.clock_steps import ends_of, step_clock
from tests.proof.recoveries.seed_comparison import Different, compared
from tests.support.wal_maker import WalMaker
from walkeeper_history.lsn_of_time import CommitTimes
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import make_plan

MB = 1 << 20
XACT_COMMIT, XACT_PREPARE, TRANSACTION = 0x00, 0x10, 1


@pytest.mark.parametrize("seed", range(6))
def test_ends_of_transactions_get_other_times_and_stay_sound(tmp_path: Path, seed: int) -> None:
    maker = WalMaker(Random(seed), segment_bytes=MB)
    for number in range(200):
        maker.record(pack("<q", number * 10**6), XACT_COMMIT, TRANSACTION)
        maker.record(pack("<16xq", 0), XACT_PREPARE, TRANSACTION)
        maker.record(8 * (1 + 997 * number % 1500))  # ends of pages lie within records
    write_segments(maker, tmp_path / "wal")
    begin = ends_of(tmp_path / "wal", 0)[20]
    times = step_clock(tmp_path / "wal", begin, Random(seed))
    assert len(times) == 180 and times[0][0] == begin
    assert min(time for _, time in times) >= 20 * 10**6
    files = open_files(str(tmp_path / "wal"))
    found = CommitTimes(files, make_plan(files))
    seen = [pair for n in range(len(make_plan(files).segments)) for pair in _ends(found, n)]
    assert seen[20:] == times, "read with CRCs checked"


def _ends(found: CommitTimes, segment: int) -> list[tuple[int, int]]:
    times, lsns = found._ended(segment)
    return list(zip(lsns.tolist(), times.tolist(), strict=True))


@pytest.mark.soak
@pytest.mark.postgres
def test_a_seed_is_compared_with_recoveries(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "4", "--postgres", "15"]) == 0
    assert "no difference" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.soak
@pytest.mark.postgres
def test_rows_that_are_not_the_servers_are_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other way round: rows that are wrong and say that they are complete."""
    monkeypatch.setattr(seed_comparison, "rows_of_text", lambda table: [("wrong",)])
    with pytest.raises(Different, match=r"over the backup .* 1 rows, expected"):
        compared(4)
    assert main(["--seed", "4", "--postgres", "15"]) == 1
    assert (
        "FOUND: python -m tests.proof.recoveries --postgres 15 --seed 4" in capsys.readouterr().out
    )
