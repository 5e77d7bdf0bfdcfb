"""docs/reference against the program: every flag, every key of a document, every option of Spark.

A page that names what is not there, or leaves out what is, is wrong. REWRITE=1 pytest writes the
flags of each command into the page.
"""

from __future__ import annotations

import asyncio
import os
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import click
import pytest

from pyspark_pgwal.pgwal_options import OPTIONS, known_options
from tests.support.folders import ROOT
from walkeeper_admin import status
from walkeeper_cli.program import cli
from walkeeper_common.addresses import parse_address
from walkeeper_wal.wal_errors import HistoryError

REFERENCE = ROOT / "docs" / "reference"
COLUMNS = 125
OF_ALL = {"--config", "--help"}  # every command has them


def section(page: str, heading: str) -> str:
    """Return what the page has below the heading, up to the next one of any level."""
    text = (REFERENCE / page).read_text()
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"{page} has no {heading!r}"
    return found[1]


def commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    """Yield every command that does something by itself, with its words."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, f"{path} {name}"
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")


COMMANDS = dict(commands(cli, "walkeeper"))


def flags(command: click.Command) -> list[str]:
    """Return the long names of the flags that --help shows, in its order."""
    return [
        option
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.hidden
        for option in parameter.opts
        if option.startswith("--") and option not in OF_ALL
    ]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_commands_section_has_its_flags_and_no_others(name: str) -> None:
    line = f"Flags: {', '.join(f'`{flag}`' for flag in flags(COMMANDS[name]))}"
    line = textwrap.fill(line, COLUMNS, break_on_hyphens=False)
    if os.environ.get("REWRITE"):
        before = section("commands.md", name)
        after = re.sub(r"^Flags:[^\n]*(?:\n`[^\n]*)*", line, before, flags=re.MULTILINE)
        path = REFERENCE / "commands.md"
        path.write_text(path.read_text().replace(f"{name}\n{before}", f"{name}\n{after}"))
    assert line in section("commands.md", name), "REWRITE=1 pytest tests/house/test_reference.py"


def test_the_page_has_no_command_that_the_program_has_not() -> None:
    text = (REFERENCE / "commands.md").read_text()
    assert sorted(re.findall(r"^### (walkeeper .+)$", text, re.MULTILINE)) == sorted(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_asks_safekeepers_speaks_tls(name: str) -> None:
    """Otherwise it would ask in plain where WALKEEPER_TLS names a file, and be refused."""
    its = flags(COMMANDS[name])
    assert "--safekeepers" not in its or "--tls" in its


def keys(heading: str) -> dict[str, bool]:
    """Return the keys of a table of status-json.md, with whether they may be left out."""
    rows = re.findall(r"^\| (`.*?) \|", section("status-json.md", heading), re.MULTILINE)
    return {
        key: row.endswith(" *") for row in rows for key in re.findall(r"`([a-z_]+)`", row)
    }  # fmt: skip


ANSWER: dict[str, Any] = {
    "id": 1, "address": "127.0.0.1:5454", "reachable": True, "incarnation": "ab", "term": 1,
    "last_log_term": 1, "flush_lsn": "0/10", "commit_lsn": "0/10", "timeline": 1, "sealed": False,
    "failure": None, "proposer": None,
    "cluster": {
        "name": "main", "system_id": "7", "generation": 1, "segment_bytes": 1 << 24,
        "members": ["1#ab"], "leaving": None, "joining": None, "ack_quorum": 1,
    },
}  # fmt: skip


@pytest.mark.parametrize("knows", [True, False])
def test_the_document_of_status_has_the_keys_of_the_page(
    knows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def one(*_: object) -> dict[str, Any]:
        return ANSWER if knows else {"address": "127.0.0.1:5454", "reachable": False}

    monkeypatch.setattr(status, "_ask_one", one)
    document = asyncio.run(status.gather([parse_address("127.0.0.1:5454")], "main", 1.0))
    told = keys("cluster")
    assert set(document["cluster"]) == {key for key in told if knows or not told[key]}
    assert set(document["safekeepers"][0]) == set(keys("safekeepers"))


@pytest.mark.parametrize(
    ("heading", "function"),
    [("standbys", "_standbys"), ("slots", "slots"), ("archive", "_archive")],
)
def test_the_parts_of_a_safekeepers_status_have_the_keys_of_the_page(
    heading: str, function: str
) -> None:
    """The keys as the source has them: an answer takes a whole safekeeper."""
    source = (
        REFERENCE.parents[1] / "safekeeper/walkeeper_safekeeper/hosting/log_status.py"
    ).read_text()
    begin = source.index('"slots": [' if function == "slots" else f"def {function}(")
    body = re.split(r"\n\n\n|\n    \}\n", source[begin:])[0].removeprefix('"slots"')
    assert re.findall(r'"([a-z_]+)":', body) == list(keys(heading))


def test_the_page_of_spark_has_every_option_of_the_source() -> None:
    rows = re.findall(r"^\| (`.*?) \|", section("spark.md", "Options"), re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(OPTIONS)
    with pytest.raises(HistoryError, match="has no option"):
        known_options({"pathh": "x"}, OPTIONS, "pgwal")
