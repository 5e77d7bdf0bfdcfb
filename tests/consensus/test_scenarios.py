"""The protocol's stories: tests/consensus/scenarios/*.txt, each run on the real cores.

A block is a command, `----`, and the effects that must come back; other blocks are prose. A
command `acceptor`, `proposer`, `cluster` or `stored` opens the stage that the next ones play on;
acceptor_stage, proposer_stage, cluster_stage and stored_stage describe their words. REWRITE=1
pytest writes what comes back into the files: read the diff as if it were code.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

import pytest

from tests.support.acceptor_stage import AcceptorStage
from tests.support.cluster_oracle import VERDICTS
from tests.support.cluster_stage import ClusterStage
from tests.support.proposer_stage import ProposerStage
from tests.support.stored_stage import StoredStage

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


class Stage(Protocol):
    def run(self, line: str) -> str: ...


STAGES: dict[str, type[Stage]] = {
    "acceptor": AcceptorStage,
    "proposer": ProposerStage,
    "cluster": ClusterStage,
    "stored": StoredStage,
}


def played(text: str) -> str:
    """Return the same text with the effects that really come back."""
    stage: Stage | None = None
    blocks = []
    for block in text.strip().split("\n\n"):
        lines = block.split("\n")
        if "----" not in lines:
            blocks.append(block)
            continue
        told = lines[: lines.index("----")]
        (command,) = (line for line in told if not line.startswith("#"))
        opened = STAGES.get(command.split()[0])
        if opened is not None:
            stage = opened()
        assert stage is not None, f"{command!r} has no stage"
        blocks.append("\n".join([*told, "----", stage.run(command)]))
    return "\n\n".join(blocks) + "\n"


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    expected = path.read_text()
    actual = played(expected)
    if os.environ.get("REWRITE"):
        path.write_text(actual)
        return
    assert actual == expected


def test_no_scenario_expects_what_the_oracle_forbids() -> None:
    for path in SCENARIOS:
        effects = [line for line in path.read_text().splitlines() if not line.startswith("#")]
        for verdict in VERDICTS:
            assert not any(verdict in line for line in effects), f"{path.name}: {verdict}"


def test_every_scenario_has_a_title_and_a_story() -> None:
    for path in SCENARIOS:
        text = path.read_text()
        assert text.startswith("# "), f"{path.name} starts without a title"
        assert text.count("\n----\n") > 1, f"{path.name} tells nothing"
