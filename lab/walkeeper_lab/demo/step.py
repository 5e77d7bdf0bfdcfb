"""The form of a demo's step: an action on a running cluster, and a claim that it proves.

    STEP = Step("A safekeeper is killed", "Commits go on with two of three", run)

`run` performs the action, looks at the servers themselves, and returns the figure that follows the
claim. It raises ClaimFailed if the servers show something else. For a new capability, add a module
to `demo.steps` and a line to the list in `demo.demo_run`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from walkeeper_common.errors import WalkeeperError
from walkeeper_lab.demo.stage import Stage


class ClaimFailed(WalkeeperError):
    """A claim does not hold; the text says what the servers show instead."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step; its `claim` is a sentence without a full stop."""

    title: str
    claim: str
    run: Callable[[Stage], Awaitable[str]]


def require(holds: bool, found: str) -> None:
    """Raise ClaimFailed with `found` unless the claim holds."""
    if not holds:
        raise ClaimFailed(found)
