"""One line of `walkeeper check`, and the list as text and as a document. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from walkeeper_common.operator_text.printable import printable

# The names that `--ignore` takes are those of checks that may warn, with `-` for a space.
WITH_WARNINGS = (
    "archive",
    "attached",
    "certificates",
    "clocks",
    "disk-space",
    "fdatasync",
    "members",
    "primary",
    "primary-slot",
    "readers",
    "repair",
    "scrub",
    "slots",
    "spares",
    "versions",
    "zones",
)


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


def counts(finding: Finding, ignored: Collection[str] = ()) -> bool:
    """Return True if the finding is a fault that is not ignored. FAILED always counts."""
    if finding.grade is Grade.WARNING:
        return finding.check.replace(" ", "-") not in ignored
    return finding.grade is Grade.FAILED


def worst(findings: Sequence[Finding], ignored: Collection[str] = ()) -> Grade:
    """Return the grade of the whole list."""
    faults = (finding.grade for finding in findings if counts(finding, ignored))
    return max(faults, default=Grade.OK)


def document(findings: Sequence[Finding], ignored: Collection[str] = ()) -> dict[str, Any]:
    """Return the list for JSON."""
    grade = worst(findings, ignored)
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
