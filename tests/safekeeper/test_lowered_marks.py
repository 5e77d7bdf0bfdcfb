"""The durable marks of a log after a start that has fallen back to a record's end (R9)."""

from __future__ import annotations

from tests.support.scenario_words import lsn_of
from tests.support.stored_stage import StoredStage


def test_a_start_that_falls_back_lowers_the_durable_commit_lsn() -> None:
    """Else retention and a later recovery would count WAL as committed that the log lacks."""
    stage, half_lsn = StoredStage(), lsn_of("0/100400")
    for line in ("stored 3", "attach a reach=1,2,3", "record 100", f"begin 3000 upto={half_lsn}"):
        stage.run(line)
    stage.run("idle a 5")
    (first, *_) = stage.safekeepers
    assert first.acceptor.durable.commit_lsn == first.acceptor.flush_lsn == half_lsn
    stage.run("start 1")
    durable = first.acceptor.durable
    assert durable.commit_lsn == first.acceptor.flush_lsn == lsn_of("0/1000A8")
    assert durable.reached_lsn <= durable.commit_lsn
