"""`walkeeper logs drop`: remove one log from one safekeeper, and leave a tombstone (M7). Pure.

A LogState without a log answers DropLog. A safekeeper without this message closes the connection on
it, as on any unknown tag.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from walkeeper_common.wire.named_log import NamedLog


@dataclass(frozen=True, slots=True)
class DropLog(NamedLog):
    """Drop the log of this uuid. Repeating it changes nothing."""

    TAG: ClassVar[int] = ord("x")
