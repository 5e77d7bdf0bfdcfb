"""docs/patroni says what our commands understand; `python -m tests.patroni` runs it."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.patroni.nodes import EXAMPLES, MORE_PACKAGES
from tests.support.restore_installation import installed
from walkeeper_cli.commands import gate, restore, settle

LINES = [
    (path.name, key, line.partition(": ")[2])
    for path in sorted(EXAMPLES.glob("*.yml"))
    for line in path.read_text().splitlines()
    for key in (line.strip().partition(":")[0],)
    if key in ("restore_command", "pre_promote")
]


def test_both_examples_have_both_hooks() -> None:
    hooks = {(name, key) for name, key, _ in LINES}
    assert hooks == {
        (name, key)
        for name in ("patroni.yml", "standby.yml")
        for key in ("restore_command", "pre_promote")
    }


@pytest.mark.parametrize(("name", "key", "line"), LINES)
def test_a_hook_of_the_examples_is_a_command_of_ours(name: str, key: str, line: str) -> None:
    words = shlex.split(line)
    command = {"restore": restore.command, "settle": settle.command}[words[1]]
    shown = CliRunner().invoke(command, ["--help"]).output
    for option in filter(re.compile("--").match, words):
        assert f"{option} " in shown, f"{name}: {key}: {option}"
    assert (words[1] == "restore") == (words[-2:] == ["%f", "%p"])


def test_the_script_in_the_place_of_postgres_is_a_command_of_ours() -> None:
    script = (EXAMPLES / "gated-postgres").read_text()
    words = shlex.split(script.replace("\\\n", " "), comments=True)
    assert words[:3] == ["exec", "/opt/walkeeper/bin/walkeeper", "gate"]
    assert words[-3:] == ["--", "/usr/lib/postgresql/15/bin/postgres", "$@"]
    shown = CliRunner().invoke(gate.command, ["--help"]).output
    for option in filter(re.compile("--.").match, words):
        assert f"{option} " in shown, option
    for example in EXAMPLES.glob("*.yml"):
        text = example.read_text()
        assert "bin_name:\n    postgres: /etc/patroni/gated-postgres\n" in text, example
        roles = set(re.findall(r"username: (\w+)", text))
        admitted = {words[at + 1] for at, word in enumerate(words) if word == "--admit"}
        assert roles == admitted | {"postgres"}, "Patroni gets in all the time"


def test_the_plays_installation_has_all_that_the_hooks_import() -> None:
    """Without it Patroni starts and promotes nobody: the commands end with an error."""
    sources = [Path(module.__file__ or "").read_text() for module in (settle, gate)]
    modules = sorted(set(re.findall(r"from (walkeeper_[\w.]+) import", "".join(sources))))
    psycopg = ("psycopg", "typing_extensions")  # in the play it is Patroni's
    with installed((*MORE_PACKAGES, *psycopg)) as installation:
        python = installation.script.with_name("python")
        command = [str(python), "-c", f"import {', '.join(modules)}"]
        done = subprocess.run(command, capture_output=True, text=True, cwd="/", env={})
    assert done.returncode == 0, done.stderr
