"""Log lines for journald: their priorities, and when they have them."""

from __future__ import annotations

import logging
import os

import pytest

from walkeeper_common.shell.log_lines.journal_stream import VARIABLE, JournalFormatter, is_journal
from walkeeper_common.shell.log_lines.operator_log import PostgresFormatter, formatter_of


def record(level: int, text: str = "said", error: BaseException | None = None) -> logging.LogRecord:
    shown = (type(error), error, error.__traceback__) if error is not None else None
    return logging.LogRecord("walkeeper", level, "", 0, text, None, shown)


@pytest.mark.parametrize(
    ("level", "mark"),
    [
        (logging.DEBUG, "<7>"),
        (logging.INFO, "<6>"),
        (logging.WARNING, "<4>"),
        (logging.ERROR, "<3>"),
        (logging.CRITICAL, "<2>"),
    ],
)
def test_a_line_has_the_priority_of_its_level(level: int, mark: str) -> None:
    told = record(level)
    line = JournalFormatter(PostgresFormatter()).format(told)
    assert line == mark + PostgresFormatter().format(told)


def test_each_line_of_a_traceback_has_it() -> None:
    lines = JournalFormatter(PostgresFormatter()).format(
        record(logging.CRITICAL, "defect", ValueError("one\ntwo"))
    )
    assert len(lines.splitlines()) > 2
    assert all(line.startswith("<2>") for line in lines.splitlines())


def test_only_the_stream_that_systemd_named_is_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe of an operator, or of a program that the unit starts, gets no marks."""
    (reading, writing), other = os.pipe(), os.pipe()
    found = os.fstat(writing)
    assert not is_journal(writing)
    monkeypatch.setenv(VARIABLE, f"{found.st_dev}:{found.st_ino}")
    assert is_journal(writing) and not is_journal(other[1])
    for descriptor in (reading, writing, *other):
        os.close(descriptor)
    assert not is_journal(writing), "closed"


@pytest.mark.parametrize("as_json", [False, True])
def test_a_log_on_stderr_has_priorities_in_the_journal_alone(
    as_json: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (reading, writing), told = os.pipe(), record(logging.WARNING)
    found = os.fstat(writing)
    plain = formatter_of(writing, as_json=as_json).format(told)
    monkeypatch.setenv(VARIABLE, f"{found.st_dev}:{found.st_ino}")
    assert formatter_of(writing, as_json=as_json).format(told) == f"<4>{plain}"
    assert plain.startswith("{") is as_json
    os.close(reading)
    os.close(writing)
