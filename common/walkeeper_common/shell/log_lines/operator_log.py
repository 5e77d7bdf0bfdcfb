"""The operator's log, in PostgreSQL's form: `2026-11-21 03:03:10.104 UTC [pid] LOG:  message`.

Or, on request, each line is a JSON object with the same words and the facts of a note apart.
Lines for journald begin with their priority (journal_stream).

A thread writes a daemon's lines in order, those on stdout among them: a pipe whose reader hangs
must not delay a commit. In that case `LINES_MAX` lines wait, and more are dropped and counted. At
the end of the process the reader has `FLUSH_S` more. A failing operation is tried once a second.
`Repetitions` logs its line once a minute. A line that strangers can cause has `extra=alike(KIND)`.
Lines of one kind count as the same line.
"""

from __future__ import annotations

import json
import logging
import os
import select
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from walkeeper_common.operator_text.counts import counted
from walkeeper_common.operator_text.printable import printable
from walkeeper_common.operator_text.severity import Severity
from walkeeper_common.shell.log_lines.audit import AUDIT_LOGGER, FACTS
from walkeeper_common.shell.log_lines.journal_stream import JournalFormatter, is_journal

LEVELS = {"DEBUG": "DEBUG", "INFO": "LOG", "WARNING": "WARNING", "ERROR": "ERROR"}
STDOUT, STDERR = 1, 2
LINES_MAX = 4096
FLUSH_S = 2.0
REPEAT_S, REPEATS_MAX, REMEMBERED_MAX = 60.0, 3, 256


def alike(kind: str) -> Mapping[str, str]:
    """Return the `extra` of a line that counts as repeated when one of this kind was logged."""
    return {"alike": kind}


class PostgresFormatter(logging.Formatter):
    """PostgreSQL's words for the levels, UTC times with milliseconds."""

    converter = time.gmtime  # type: ignore[assignment]
    default_time_format = "%Y-%m-%d %H:%M:%S"
    default_msec_format = "%s.%03d UTC"

    def format(self, record: logging.LogRecord) -> str:
        level = LEVELS.get(record.levelname, "FATAL")
        said = printable(record.getMessage())  # it may hold a peer's names
        text = f"{self.formatTime(record)} [{record.process}] {level}:  {said}"
        if record.exc_info:
            text += "\n" + printable(self.formatException(record.exc_info), kept="\n")
        return text


class JsonFormatter(PostgresFormatter):
    """The same line as one JSON object: time, pid, level, logger, message, and facts or error."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": self.formatTime(record),
            "pid": record.process,
            "level": LEVELS.get(record.levelname, "FATAL"),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if facts := getattr(record, FACTS, None):
            fields["facts"] = facts
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return json.dumps(fields)  # in ASCII, so no name can hold a control character


@dataclass(slots=True)
class _Said:
    """A line's count in the minute that began at `since_s`, and how often it was held back."""

    since_s: float
    times: int = 1
    held_back: int = 0


class Repetitions:
    """Lets the same line pass REPEATS_MAX times in a minute, then once a minute.

    The line of each later minute says how many more it stands for. The REMEMBERED_MAX lines that
    were logged last are known.
    """

    def __init__(self) -> None:
        self._lines: dict[str, _Said] = {}

    def passed(self, line: str, now_s: float, *, kind: str | None = None) -> str | None:
        """Return the text to write, or None if the line is held back.

        All lines of one kind count as the same line.
        """
        known_as = line if kind is None else kind
        said = self._lines.pop(known_as, None)
        if said is None or now_s >= said.since_s + REPEAT_S:
            more = said.held_back if said is not None else 0
            self._lines[known_as] = _Said(now_s, REPEATS_MAX if more else 1)
            if len(self._lines) > REMEMBERED_MAX:
                del self._lines[next(iter(self._lines))]
            times = counted(more, "time", "times")
            return f"{line} ({times} more since the last such line)" if more else line
        self._lines[known_as] = said
        said.times += 1
        if said.times > REPEATS_MAX:
            said.held_back += 1
            return None
        return f"{line} (again; from here on once a minute)" if said.times == REPEATS_MAX else line


class BackgroundOutput(logging.Handler):
    """A handler whose thread writes until the process ends; `background_output()` returns it."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(PostgresFormatter())
        self._changed = threading.Condition()
        self._lines: list[tuple[int, str]] = []  # the next ones to write, each with its descriptor
        self._dropped = 0
        self._repetitions = Repetitions()
        self._is_writing = self._is_given_up = False
        threading.Thread(target=self._run, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            is_audit = record.name == AUDIT_LOGGER  # it holds back lines by rules of its own
            if record.levelno < logging.ERROR and not record.exc_info and not is_audit:
                kind = getattr(record, "alike", None)
                line, now_s = record.getMessage(), time.monotonic()
                text = self._repetitions.passed(line, now_s, kind=kind)
                if text is None:
                    return
                record.msg, record.args = text, ()
            line = self.format(record)
        except Exception:
            self.handleError(record)
            return
        with self._changed:
            if len(self._lines) >= LINES_MAX and record.levelno < logging.CRITICAL:
                self._dropped += 1
                return
            self._tell_of_dropped()
            self._append(STDERR, line)

    def print(self, line: str) -> None:
        """Write to stdout, after the lines that were logged before; never drop the line."""
        with self._changed:
            self._tell_of_dropped()
            self._append(STDOUT, line)

    def flush(self) -> None:
        """Wait FLUSH_S at most until all is written; else give up, and lead stderr to /dev/null."""
        with self._changed:
            is_written = self._changed.wait_for(
                lambda: self._is_given_up or not (self._lines or self._is_writing), FLUSH_S
            )
            if is_written:
                return
            self._is_given_up = True
        # Python's own output, for example a traceback, would wait for the reader as well.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, STDERR)
        os.close(nowhere)

    def _append(self, descriptor: int, line: str) -> None:
        self._lines.append((descriptor, line))
        self._changed.notify_all()

    def _tell_of_dropped(self) -> None:
        if self._dropped:
            lines = counted(self._dropped, "line was", "lines were")
            said = f"{lines} not logged: the reader of stderr did not keep up"
            self._dropped = 0
            record = logging.LogRecord("", logging.WARNING, "", 0, said, None, None)
            self._append(STDERR, self.format(record))

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._lines)
                self._tell_of_dropped()
                lines, self._lines = self._lines, []
                self._is_writing = True
            for descriptor, line in lines:
                try:
                    _write(descriptor, f"{line}\n".encode(errors="backslashreplace"))
                except OSError as error:  # the program that started this one reads no more
                    if descriptor == STDOUT:
                        logging.getLogger("walkeeper").warning("%s; stdout: %s", line, error)


@cache
def background_output() -> BackgroundOutput:
    """Return this process's output; make it and start its thread at the first call."""
    return BackgroundOutput()


def _write(descriptor: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:  # another process that shares the descriptor has made it so
            select.select((), (descriptor,), ())


def formatter_of(descriptor: int, *, as_json: bool = False) -> logging.Formatter:
    """Return the form of lines that are written there. The journal's have priorities."""
    lines = JsonFormatter() if as_json else PostgresFormatter()
    return JournalFormatter(lines) if is_journal(descriptor) else lines


def log_in_background(level: str, *, as_json: bool = False) -> None:
    """Log as the daemons do, in the background; called once."""
    background_output().setFormatter(formatter_of(STDERR, as_json=as_json))
    _log_through(background_output(), level)


def log_to_stderr(level: str) -> None:
    """Log as the commands do, which end; called once."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter_of(STDERR))
    _log_through(handler, level)


def _log_through(handler: logging.Handler, level: str) -> None:
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)


LEVEL_OF = {
    Severity.LOG: logging.INFO,
    Severity.WARNING: logging.WARNING,
    Severity.ERROR: logging.ERROR,
}


def log_note(
    logger: logging.Logger, text: str, facts: object, severity: Severity = Severity.LOG
) -> None:
    """Log a core's Note: its text, then its facts as key=value."""
    pairs = facts if isinstance(facts, list | tuple) else ()
    shown = " ".join(f"{name}={value}" for name, value in pairs)
    apart = {FACTS: {name: str(value) for name, value in pairs}}
    logger.log(LEVEL_OF[severity], "%s%s%s", text, ": " if shown else "", shown, extra=apart)
