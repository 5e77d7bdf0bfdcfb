"""A line for the operator's log, as a core asks for it: an effect of both cores. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from walkeeper_common.operator_text.severity import Severity


@dataclass(frozen=True, slots=True)
class Note:
    """For the operator's log; `facts` are shown as key=value."""

    text: str
    facts: tuple[tuple[str, object], ...] = ()
    severity: Severity = Severity.LOG
