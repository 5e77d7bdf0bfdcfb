"""Two logs' proposers on one slot do not fight for ever; a deposed one counts only once. Pure."""

from __future__ import annotations

import pytest

from walkeeper_common.errors import Refused
from walkeeper_proposer.postgres.slot_rivals import RIVALS_MAX, RIVALS_S, SlotRivals


def test_a_rival_that_comes_back_each_time_ends_this_proposer() -> None:
    rivals = SlotRivals("", "walkeeper")
    for number in range(RIVALS_MAX - 1):
        rivals.on_ended(100 + number, float(number))
    with pytest.raises(Refused, match="another log's proposer uses it"):
        rivals.on_ended(200, 10.0)


def test_own_old_connections_and_one_slow_holder_and_rare_ones_are_none() -> None:
    rivals = SlotRivals("", "walkeeper")
    for number in range(3 * RIVALS_MAX):
        rivals.own(number)
        rivals.on_ended(number, 1.0)  # the server had not noticed yet
        rivals.on_ended(99, 1.0 + number / 10)  # the same one does not go at once
    for number in range(3 * RIVALS_MAX):
        rivals.on_ended(1000 + number, 100.0 + RIVALS_S * number)
