"""The message on a terminal that explains the wait for the first run's compiler."""

from __future__ import annotations

import logging
import sys

import click

from walkeeper_wal.records.compiling import COMPILING


class _Echo(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        click.echo(f"walkeeper: {record.getMessage()}", err=True)


def tell_who_waits() -> None:
    """Log the compiler's messages on stderr, if stderr is a terminal."""
    logger = logging.getLogger(COMPILING)
    if sys.stderr.isatty() and not logger.handlers:
        logger.addHandler(_Echo())
        logger.setLevel(logging.INFO)
        logger.propagate = False
