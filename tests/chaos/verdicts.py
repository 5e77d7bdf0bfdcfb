"""The ways in which a run can fail. The exit codes are the simulator's."""

from __future__ import annotations


class Violation(Exception):
    """Acknowledged data is lost, or two parts hold different WAL. Exit code 2."""


class NoProgress(Exception):
    """Everything was well again, and still no commit returned. Exit code 3."""


class DaemonBroke(Exception):
    """A daemon's output has an error that no fault explains. Exit code 1."""


class NotFelt(Exception):
    """A fault was injected and had no effect: the runner is broken. Exit code 1."""


class CannotRun(Exception):
    """This machine lacks something; the text says what. Exit code 1."""
