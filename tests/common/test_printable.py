"""Text of peers cannot begin a line of the log, nor speak to a terminal."""

from __future__ import annotations

import logging
import sys

import pytest

from walkeeper_common.operator_text.printable import in_one_line, printable
from walkeeper_common.shell.log_lines.operator_log import PostgresFormatter


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, 'quoted'", "plain text, 'quoted'"),
        ("a\n2026-11-25 FATAL: fake line", r"a\n2026-11-25 FATAL: fake line"),
        ("\x1b]0;title\x07\x1b[2J", r"\x1b]0;title\x07\x1b[2J"),
        ("\x9b31m\x7f\r\t", r"\u009b31m\x7f\r\t"),
        ("\u202egnp.exe\u2028", r"\u202egnp.exe\u2028"),
        ("Größe 名前 🙂", "Größe 名前 🙂"),
        ("\udc80", r"\udc80"),
    ],
)
def test_controls_become_escapes(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_a_log_line_is_one_line() -> None:
    """`SHOW "a\\n… FATAL: fake"` wrote a forged line into a safekeeper's log."""
    name = "a\n2026-11-25 00:00:00.000 UTC [1] FATAL:  fake\x1b[2J"
    record = logging.LogRecord("x", logging.INFO, "", 0, "client: %s", (name,), None)
    text = PostgresFormatter().format(record)
    assert text.count("\n") == 0 and "\x1b" not in text and r"\n2026" in text


def test_a_traceback_keeps_its_lines_and_hides_controls() -> None:
    try:
        raise ValueError("bad \x1b[2J")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "failed", (), sys.exc_info())
    text = PostgresFormatter().format(record)
    assert text.count("\n") > 2 and "\x1b" not in text
    assert printable("a\nb\x07", kept="\n") == "a\nb\\x07"


def test_an_error_of_several_lines_is_one_line() -> None:
    error = ValueError('connection failed:\n\tFATAL:  no such role\r\nDETAIL:  "u"\n')
    assert in_one_line(error) == 'connection failed: FATAL: no such role DETAIL: "u"'
    assert in_one_line("  \n") == ""
