"""With only the base installed, commands say which extra to install, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.waiting import LIMIT_S
from walkeeper_cli.program import EXTRAS

NEEDY = {
    "history tables --path {d} --output {d}/t": "history",
    "history report --path {d} --output {d}/r.html": "history",
    "history find drop --path {d}": "history",
    "history tail --path {d}": "history",
    "history catalog --dsn service=none --output {d}/names.json": "history",
    "history table-at t --path {d}": "history",
    "history changes --path {d}": "history",
    "history undo --path {d} --all-tables": "history",
    "pager --safekeepers h:1 --base {d} --data-dir {d}/p": "history",
    "snapshot --safekeepers h:1 --dsn host=none --slot s --output {d}/s": "history",
    "archive ls s3://bucket/prefix": "archive",
    "bench commit --plot {d}/plot.svg": "bench",
    "bench archive-put --plot {d}/plot.svg": "bench",
}
RUN = """
import sys

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {extras!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, NotInstalled())
from walkeeper_cli.program import run

for command in {commands!r}:
    print("exit code", run(command.split()), flush=True)
"""


def test_without_its_extra_a_command_says_what_to_install(tmp_path: Path) -> None:
    commands = [command.format(d=tmp_path) for command in NEEDY]
    code = RUN.format(extras=tuple(EXTRAS), commands=commands)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    said = done.stderr.splitlines()
    assert done.stdout.split("\n")[:-1] == ["exit code 1"] * len(commands), done.stderr
    assert len(said) == len(commands), done.stderr
    for command, extra, line in zip(commands, NEEDY.values(), said, strict=True):
        assert f"pip install 'walkeeper[{extra}]'" in line, (command, line)
    assert not list(tmp_path.iterdir())
