"""The arithmetic of the comparison of two standbys, on sweeps made by hand."""

from __future__ import annotations

from tests.proof.standby_lag import SEEN, SIDES, Sweeps, ratio, spread


def sweeps(flushed: list[int], replayed: list[int]) -> Sweeps:
    """Return a sweep each 10 ms, whose second standby is read 1 ms after the primary."""
    found = Sweeps([(i / 100, lsn) for i, lsn in enumerate(flushed)])
    for seen in SEEN:
        found.reached[seen] = [(i / 100 + 0.001, lsn) for i, lsn in enumerate(replayed)]
        found.first[seen] = replayed
    return found


def test_the_lag_of_an_lsn_ends_at_the_first_sweep_that_finds_it_replayed() -> None:
    found = sweeps([100, 100, 200, 300, 300], [0, 100, 100, 250, 300])
    assert [round(lag) for lag in found.lags_ms(SIDES[0])] == [11, 11, 11]


def test_an_lsn_that_is_never_replayed_has_no_lag() -> None:
    assert len(sweeps([100, 200], [100, 150]).lags_ms(SIDES[0])) == 1


def test_the_bytes_that_a_standby_lacks_are_counted_in_each_sweep() -> None:
    found = sweeps([1_000_000, 3_000_000], [1_000_000, 2_500_000])
    assert found.lags_mb(SIDES[1]) == [0.0, 0.5]
    assert sweeps([100], [200]).lags_mb(SIDES[1]) == [0.0], "it was read later"


def test_spreads_and_ratios() -> None:
    assert spread([float(n) for n in range(100)]) == (49.5, 95.0, 99.0)
    assert ratio(0.0, 0.0) == 1.0 and ratio(3.0, 2.0) == 1.5 and ratio(1.0, 0.0) == float("inf")
