"""What a step of the demo is: something done to a running cluster, and a claim that it proves.

    STEP = Step("A safekeeper is killed", "Commits go on with two of three", run)

`run` does it, looks at the servers themselves, and returns the figure that goes behind the claim.
It raises ClaimFailed if what it finds is something else. A later capability adds a module to
`demo.steps` and a line to the list in `demo.show`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from walkeeper_cli.demo.stage import Stage
from walkeeper_common.errors import WalkeeperError


class ClaimFailed(WalkeeperError):
    """What was found instead."""


@dataclass(frozen=True, slots=True)
class Step:
    """`claim` is a sentence without its full stop."""

    title: str
    claim: str
    run: Callable[[Stage], Awaitable[str]]


def require(holds: bool, found: str) -> None:
    """ClaimFailed with what was found, unless it holds."""
    if not holds:
        raise ClaimFailed(found)
