"""One line of `walkeeper check`, and the list as text and as a document. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from walkeeper_common.printable import printable


class Grade(IntEnum):
    """The values are exit codes, as Nagios has them."""

    OK = 0
    WARNING = 1
    FAILED = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. A finding that is not OK says why that matters and what to do."""

    check: str
    grade: Grade
    text: str
    why: str = ""
    remedy: str = ""

    def shown(self) -> dict[str, Any]:
        """Return the finding for JSON."""
        return {
            "check": self.check,
            "state": self.grade.name,
            "text": self.text,
            "why": self.why or None,
            "remedy": self.remedy or None,
        }


def ok(check: str, text: str) -> Finding:
    """Return a finding without a fault."""
    return Finding(check, Grade.OK, text)


def worst(findings: Sequence[Finding]) -> Grade:
    """Return the grade of the whole list."""
    return max((finding.grade for finding in findings), default=Grade.OK)


def document(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the list for JSON."""
    grade = worst(findings)
    checks = [finding.shown() for finding in findings]
    return {"state": grade.name, "exit_code": int(grade), "checks": checks}


def shown(finding: Finding) -> str:
    """Return one finding as lines."""
    lines = [f"{finding.grade.name:<8} {finding.check:<14} {finding.text}"]
    if finding.why:
        lines.append(f"{'':<24}why: {finding.why}")
    if finding.remedy:
        lines.append(f"{'':<24}do:  {finding.remedy}")
    return "\n".join(map(printable, lines))
