"""The proposer's log and its report tell of a repair that is held back."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import cast

import pytest

from walkeeper_proposer.consensus.members.repairing import REPAIRS_S, Held, Repair
from walkeeper_proposer.consensus.proposer import Proposer
from walkeeper_proposer.repairs import Repairs


def test_the_log_says_once_an_hour_that_a_repair_is_held_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    repairs = Repairs("main", lambda: cast(Proposer, None), list, 60.0)
    repairs._auditor.held = Held("3#c", "2 repairs have begun in an hour", 5000.0)
    with caplog.at_level(logging.INFO, "walkeeper.repairs"):
        for now_s in (100.0, 101.0, 100.0 + REPAIRS_S - 1):
            repairs._tell_held(now_s)
        assert len(caplog.messages) == 1
        repairs._tell_held(100.0 + REPAIRS_S)
    assert len(caplog.messages) == 2
    assert "a repair is held back: safekeeper 3 is silent, and 2 repairs" in caplog.messages[0]
    assert "it may begin at 2" in repairs.shown() and repairs.facts["text"] == repairs.shown()
    repairs._auditor.held = None
    repairs._tell_held(9000.0)
    assert repairs.shown() == ""
    assert json.dumps(repairs.facts)


def test_a_spare_without_an_address_is_a_failed_repair(caplog: pytest.LogCaptureFixture) -> None:
    """A safekeeper may report any text, and the proposer goes on."""
    repairs = Repairs("main", lambda: cast(Proposer, None), lambda: (("h1", 1),), 60.0)
    with caplog.at_level(logging.INFO, "walkeeper.repairs"):
        asyncio.run(repairs._perform(Repair("3#c", "4@h4:65536")))
    assert (repairs.done, repairs.failed) == (0, 1)
    assert "could not replace safekeeper 3 by spare 4" in caplog.messages[-1]
    assert "is no address" in caplog.messages[-1]
