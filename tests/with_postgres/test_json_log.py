"""`--log-json`: each line is one object with the words of the other form, and facts apart."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator

import pytest

from tests.support.cluster import Cluster
from tests.support.postgres_server import PostgresServer
from walkeeper_common.access.identity import ANYBODY
from walkeeper_common.operator_text.severity import Severity
from walkeeper_common.shell.log_lines.audit import Audit
from walkeeper_common.shell.log_lines.operator_log import JsonFormatter, log_note


@pytest.fixture
def lines() -> Iterator[list[str]]:
    made = list[str]()

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            made.append(JsonFormatter().format(record))

    handler = Kept()
    logging.getLogger().addHandler(handler)
    yield made
    logging.getLogger().removeHandler(handler)


def test_a_note_has_its_facts_apart_and_a_name_cannot_forge_a_line(lines: list[str]) -> None:
    logger = logging.getLogger("walkeeper.test")
    log_note(logger, "left\n\x1b[2J", (("link", 1), ("code", "NO_SPACE")), Severity.ERROR)
    (line,) = lines
    assert line.isascii() and line.isprintable()
    found = json.loads(line)
    assert found["message"] == "left\n\x1b[2J: link=1 code=NO_SPACE"
    assert found["facts"] == {"link": "1", "code": "NO_SPACE"}
    assert (found["level"], found["logger"]) == ("ERROR", "walkeeper.test")


def test_an_audit_line_has_its_fields_apart(
    lines: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    Audit().change("drop-slot", ANYBODY, "[::1]:9", slot="a\nb")
    (line,) = lines
    found = json.loads(line)
    assert found["logger"] == "walkeeper.audit" and found["facts"]["slot"] == "a\nb"
    assert found["facts"]["identity"] == "anybody" and found["facts"]["event"] == "change"


def test_an_exception_is_in_the_object(lines: list[str]) -> None:
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("walkeeper.test").critical("ended", exc_info=sys.exc_info())
    found = json.loads(lines[0])
    assert found["level"] == "FATAL" and "ValueError: why" in found["error"]


@pytest.mark.postgres
def test_daemons_write_objects(primary: PostgresServer) -> None:
    cluster = Cluster(primary)
    try:
        for safekeeper in cluster.safekeepers:
            safekeeper.start("--log-json")
        cluster.make_log()
        cluster.proposer.start("--log-json")
        said = [
            line
            for daemon in (*cluster.safekeepers, cluster.proposer)
            for line in daemon.output().splitlines()
            if not line.startswith(("ready: ", "waiting: "))
        ]
        assert said and all(json.loads(line)["pid"] for line in said)
    finally:
        cluster.close()
