"""The states of proposer and acceptor, as the scenarios drive the shipping cores through them.

    python -m tests.house.transitions    writes the tables of docs/architecture.md and docs/images

A state of the proposer is its phase. An acceptor takes appends of no leader after a start or a
vote, of one leader after its ProposerElected, and none after a failed write.
"""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from unittest import mock

from tests.consensus.test_scenarios import SCENARIOS, played
from tests.support.folders import ROOT
from walkeeper_proposer.consensus.proposer import Proposer
from walkeeper_safekeeper.consensus.acceptor import Acceptor

PAGE = ROOT / "docs/architecture.md"
IMAGES = ROOT / "docs/images"
BEGIN = "<!-- The states of the {}; python -m tests.house.transitions writes them. -->"
END = "<!-- The end of the states of the {}. -->"

LINE_BREAK = r"\n"  # Graphviz reads it so

Transitions = Mapping[tuple[str, str], frozenset[str]]


def phase_of(proposer: Proposer) -> str:
    return proposer.phase.name.lower().replace("_", " ")


def state_of(acceptor: Acceptor) -> str:
    if acceptor.failure is not None:
        return "failed"
    return "no leader" if acceptor.appender is None else "follows a leader"


def event_name(event: object) -> str:
    """Return the name of an event, or of the message that it brings."""
    message = getattr(event, "message", None)
    return type(event if message is None else message).__name__


def recorded() -> dict[str, Transitions]:
    """Return the transitions of both cores, (from, to) to the events that cause them."""
    with _recording(Proposer, phase_of) as proposer, _recording(Acceptor, state_of) as acceptor:
        for path in SCENARIOS:
            played(path.read_text())
    return {
        "proposer": {pair: frozenset(events) for pair, events in proposer.items()},
        "acceptor": {pair: frozenset(events) for pair, events in acceptor.items()},
    }


@contextmanager
def _recording(
    core: type, state: Callable[..., str]
) -> Iterator[defaultdict[tuple[str, str], set[str]]]:
    found: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    step = core.step  # type: ignore[attr-defined]  # both cores have it

    def traced(self: object, event: object) -> object:
        before = state(self)
        effects = step(self, event)
        if state(self) != before:
            found[before, state(self)].add(event_name(event))
        return effects

    with mock.patch.object(core, "step", traced):
        yield found


def table(transitions: Transitions) -> str:
    """Return a row for each pair of states."""
    rows = [
        f"| {before} | {after} | {', '.join(sorted(events))} |"
        for (before, after), events in sorted(transitions.items())
    ]
    return "\n".join(["| from | to | by |", "|---|---|---|", *rows])


def dot(transitions: Transitions) -> str:
    """Return the same as a graph of Graphviz."""
    states = sorted({state for pair in transitions for state in pair})
    lines = [
        "digraph states {",
        '  node [shape=box, style="rounded,filled", fillcolor="#e8eaf6", fontname="Helvetica"];',
        '  edge [fontname="Helvetica", fontsize=9]; bgcolor="white"; rankdir=TB;',
        *(f'  "{state}";' for state in states),
        *(
            rf'  "{before}" -> "{after}" [label="{LINE_BREAK.join(sorted(events))}"];'
            for (before, after), events in sorted(transitions.items())
        ),
        "}",
    ]
    return "\n".join(lines) + "\n"


def with_tables(text: str, found: Mapping[str, Transitions]) -> str:
    """Return a page with the tables between their marks."""
    for core, transitions in found.items():
        before, _, rest = text.partition(BEGIN.format(core))
        _, _, after = rest.partition(END.format(core))
        body = f"{BEGIN.format(core)}\n\n{table(transitions)}\n\n{END.format(core)}"
        text = before + body + after
    return text


def main() -> int:
    """Write the tables and, by Graphviz, the pictures."""
    found = recorded()
    PAGE.write_text(with_tables(PAGE.read_text(), found))
    IMAGES.mkdir(exist_ok=True)
    for core, transitions in found.items():
        command = ["dot", "-Tsvg", "-o", str(IMAGES / f"{core}-states.svg")]
        subprocess.run(command, input=dot(transitions), text=True, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
