"""Each rule is taken out of a copy of the source, and the killer that is known for it kills again.

The whole table, with the control on every seed and world: `python -m tests.proof.mutants`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.proof.mutants import attack, document, killers, syntax
from tests.proof.mutants.attack import (
    PYTEST,
    TEST_S,
    Kill,
    planted,
    run_in,
    simulate,
    turn_red,
)
from tests.proof.mutants.catalogue import MUTANTS
from tests.proof.mutants.mutant import COMPILED, CONTROL, EXPLORED, SIM, Edit, Mutant, plant
from tests.proof.mutants.syntax import DoesNotFit
from tests.proof.mutants.table import Row, control_of_seeds, row_of, seeds_of
from tests.proof.sim.search import BROKEN
from tests.support.folders import ROOT

KEPT = killers.load()
RULES = range(1, 21)
OWN_MIN = 10
OWN_PLACES = ("driver", "wal_store", "wal_recovery", "log_folder", "wal_window")
AT_A_TIME = 2


@pytest.fixture(scope="module")
def rows() -> Iterator[dict[str, Future[Row]]]:
    """By name; each mutant in a process of its own, some at a time."""
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        yield {m.name: pool.submit(partial(row_of, m, _quickest(m))) for m in MUTANTS}
        pool.shutdown(cancel_futures=True)


def _quickest(mutant: Mutant) -> list[Kill]:
    quickest = KEPT[mutant.name].quickest if mutant.name in KEPT else None
    return [] if quickest is None else [quickest]


SEEN_BY_TESTS = [mutant for mutant in MUTANTS if mutant.turns_red is not None]
SEEN_BY_ORACLES = [mutant for mutant in MUTANTS if mutant.turns_red is None]


@pytest.fixture(scope="module")
def green_tests() -> None:
    """The source as it is passes all the tests that are to turn red."""
    with planted(CONTROL) as tree:
        wanted = sorted({mutant.turns_red for mutant in SEEN_BY_TESTS if mutant.turns_red})
        green = run_in(tree, *PYTEST, *wanted, seconds=len(wanted) * TEST_S)
    assert green.returncode == 0, green.stdout


@pytest.mark.soak
@pytest.mark.parametrize("mutant", SEEN_BY_TESTS, ids=lambda mutant: mutant.name)
def test_a_test_turns_red(mutant: Mutant, green_tests: None) -> None:
    assert mutant.turns_red is not None
    with planted(mutant) as tree:
        assert turn_red(tree, mutant.turns_red) is not None


@pytest.mark.soak
@pytest.mark.parametrize("mutant", SEEN_BY_ORACLES, ids=lambda mutant: mutant.name)
def test_an_oracle_notices(mutant: Mutant, rows: dict[str, Future[Row]]) -> None:
    assert _quickest(mutant), (
        "nobody has found it yet: python -m tests.proof.mutants --find --missing"
    )
    row = rows[mutant.name].result()
    assert row.is_killed, f"{mutant.removed}: survives what killed it, {_quickest(mutant)[0]}"


SEEDS = seeds_of(killer for mutant in MUTANTS for killer in _quickest(mutant))


@pytest.mark.soak
@pytest.mark.parametrize("program", SEEDS)
def test_the_source_as_it_is_survives_on_some_of_the_same_seeds(program: str) -> None:
    """On all of them: the table."""
    some = 12 if program == SIM else 4
    line = control_of_seeds(program, SEEDS[program][-some:])
    assert line.is_green, line.found


def test_a_mutant_that_no_search_finds_says_why() -> None:
    unfit = [m.name for m in MUTANTS if (m.turns_red is None) != (not m.why_named)]
    assert not unfit, "a named test needs a reason, and a reason a named test"


def test_the_document_has_the_table() -> None:
    text = document.PATH.read_text()
    wanted = document.with_table(text, MUTANTS, KEPT)
    assert text == wanted, "python -m tests.proof.mutants --document"


def test_every_rule_and_every_flaw_of_the_seed_document_has_a_mutant() -> None:
    named = {number for m in MUTANTS for number in re.findall(r"\bR\d+\b", m.rule)}
    assert named >= {f"R{rule}" for rule in RULES}
    assert not [m.name for m in MUTANTS if m.rule[0].isdigit()], "a rule's name begins with R or M"
    flaws = {m.rule for m in MUTANTS if m.rule.startswith("seed flaw")}
    assert flaws == {f"seed flaw {number}" for number in (1, 2, 3)}
    own = [m for m in MUTANTS if m.rule in OWN_PLACES]
    assert len(own) >= OWN_MIN and len({m.name for m in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_fits_and_is_python(mutant: Mutant) -> None:
    texts: dict[str, str] = {}
    for edit in mutant.edits:
        texts[edit.file] = edit.made_in(texts.get(edit.file) or (ROOT / edit.file).read_text())
    for file, text in texts.items():
        if file in COMPILED:
            continue  # `plant` compiles it
        compile(text, file, "exec")
        source = ast.parse((ROOT / file).read_text())
        assert ast.dump(ast.parse(text)) != ast.dump(source), file


def test_the_exploration_runs_the_source_that_is_named_so() -> None:
    """A search for killers skips the exploration for an edit elsewhere."""
    assert all((ROOT / place).exists() for place in EXPLORED), f"{EXPLORED=}"
    assert sum(mutant.is_explored for mutant in MUTANTS) > OWN_MIN


def test_a_mutant_that_does_not_fit_any_more_is_an_error(tmp_path: Path) -> None:
    for edit, text in (
        (Edit("MemberSet.vote_quorum", "no_such_name"), "stale.*vote_quorum: 0 times"),
        (Edit("Configuration.no_such_method", "self"), "no_such_method is defined 0 times"),
        (Edit("__init__", "self"), r"defined \d+ times: .*acceptor\.py"),
        (Edit("MemberSet.vote_quorum", "self", "other"), "stale.*2 times: 'self'"),
    ):
        with pytest.raises(DoesNotFit, match=text):
            plant(Mutant("stale", "R19", "nothing", (edit,)), tmp_path / edit.old / edit.where)


SOURCE = '''
class Log:
    """One."""

    def move(self, lsn):
        # A reason.
        if lsn < self.end and lsn != 0:
            self.end = replace(
                lsn,
                at=1,  # the first
                to=2,
            )
            self.moves += 1
        return self.end
'''


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("lsn < self.end", "False", "if False and lsn != 0:"),
        ("return  self.end  # other words", "return 7", "return 7"),
        ("self.end = replace(lsn, at=1, to=2)\nself.moves += 1", "", "pass"),
        ("self.moves += 1", "pass\nself.moves += 2", "self.moves += 2"),
        ("at=1", "at=3", "self.end = replace(lsn, at=3, to=2)"),
        ("to = 2", "", "self.end = replace(lsn, at=1)"),
    ],
)
def test_an_edit_is_found_by_its_syntax(old: str, new: str, line: str) -> None:
    """Comments and formatting around it change nothing."""
    made = syntax.edited(SOURCE, ("Log", "move"), old, new)
    assert line in [one.strip() for one in made.splitlines()]
    assert made == syntax.edited(ast.unparse(ast.parse(SOURCE)), ("Log", "move"), old, new)


def test_a_definition_is_found_by_its_name_whatever_its_file() -> None:
    place = syntax.place_of("acceptor.Acceptor.on_append")
    assert place == syntax.place_of("Acceptor.on_append")
    assert place.names == ("Acceptor", "on_append") and place.file.endswith("/acceptor.py")


def test_a_test_that_waits_for_what_was_taken_away_turns_red_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits up to the suite's limit, and the run of one test has another."""
    monkeypatch.setattr(attack, "WAIT_S", 0.5)
    tree = tmp_path / "control"
    plant(CONTROL, tree)
    waits = "from tests.support.waiting import until\nfrom asyncio import run\n"
    made = (tree / "test_waits").with_suffix(".py")
    made.write_text(waits + "def test_waits(): run(until(lambda: False))\n")
    assert turn_red(tree, made.name) is not None


def test_code_that_breaks_is_no_kill(tmp_path: Path) -> None:
    """Neither an assertion nor an error counts: only what an oracle saw does."""
    line = "return len(self.members) - self.ack_quorum + 1"
    edit = Edit("MemberSet.vote_quorum", line, f"assert False\n{line}")
    broken = Mutant("broken", "R19", "nothing", (edit,))
    plant(broken, tmp_path / "broken")
    assert simulate(tmp_path / "broken", first=0, count=2, seconds=30) is None
    plant(CONTROL, tmp_path / "control")
    assert simulate(tmp_path / "control", first=0, count=2, seconds=30) is None
    assert BROKEN == 1
