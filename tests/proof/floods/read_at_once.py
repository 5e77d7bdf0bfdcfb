"""A safekeeper that reads each visit at once: `python read_at_once.py safekeeper …`. A shell.

By default a safekeeper reads 75 visits a second that prove nothing (waiting_line.py). A million of
them would take hours, and most would leave unread. The memory of each visit is what `--inputs`
measures, so its safekeepers have no such bound. All other bounds stay.
"""

from __future__ import annotations

from walkeeper_cli.program import main
from walkeeper_safekeeper import safekeeper_daemon
from walkeeper_safekeeper.connections.waiting_line import Allowance, LineLimits

UNBOUNDED = Allowance(burst=1 << 40, per_s=1e9)


def limits() -> LineLimits:
    """Return limits that let each visit enter."""
    return LineLimits(network=UNBOUNDED, everyone=UNBOUNDED)


if __name__ == "__main__":
    safekeeper_daemon.line_limits = limits
    main()
