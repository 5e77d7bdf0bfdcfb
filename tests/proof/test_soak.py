"""The soak: what it runs, and how it says what it found."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.proof.soak import __main__ as soak
from tests.proof.soak.stages import SEARCHES, WHOLE, Stage, repetitions, rotated
from tests.support.folders import ROOT

QUIET = Stage("quiet", "finds nothing", f"{sys.executable} -c pass", share=1.0)
SIM = Stage(
    "sim", "a search", "python -m tests.proof.sim --from {seed} --minutes {minutes}", share=1.0
)


def test_a_failed_search_is_repeated_by_the_command_that_it_printed() -> None:
    output = (
        "NO PROGRESS\nfailed (exit code 3): python -m tests.proof.sim --busy --seed 195234600\n"
    )
    assert repetitions(SIM, output, seed=7) == [
        ".venv/bin/python -m tests.proof.sim --busy --seed 195234600"
    ]


def test_a_failed_test_is_repeated_with_its_seed() -> None:
    stage = next(stage for stage in WHOLE if stage.name == "all tests")
    output = "FAILED tests/test_x.py::test_y[a-b] - AssertionError\nERROR tests/test_z.py::test_w\n"
    begin = "WALKEEPER_TEST_SEED=7 WALKEEPER_TEST_FORKS=off .venv/bin/python -m pytest -n 0"
    assert repetitions(stage, output, seed=7) == [
        f"{begin} 'tests/test_x.py::test_y[a-b]'",
        f"{begin} 'tests/test_z.py::test_w'",
    ]


def test_a_failure_without_a_word_is_repeated_as_a_whole() -> None:
    (whole,) = repetitions(WHOLE[0], "Killed", seed=7)
    assert whole.startswith("WALKEEPER_TEST_SEED='7' PYTEST_OPTIONS='-n 3 ")
    assert whole.endswith("--randomly-seed=7' WALKEEPER_TEST_FORKS='off' make test")


def test_each_whole_stage_comes_first_for_some_seed() -> None:
    assert {rotated(WHOLE, by)[0].name for by in range(len(WHOLE))} == {s.name for s in WHOLE}
    assert sum(stage.share for stage in SEARCHES) < 0.8, "the rest is for whole stages"


def test_stages_name_commands_that_exist() -> None:
    targets = (ROOT / "Makefile").read_text()
    for stage in (*SEARCHES, *WHOLE):
        program, *words = stage.words(seed=1, minutes=0.5)
        if program == "make":
            assert f"\n{words[0]}:" in targets
        else:
            module = ROOT / words[1].replace(".", "/")
            assert module.with_suffix(".py").exists() or (module / "__main__.py").exists()


def test_a_soak_ends_with_what_it_found_and_what_it_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "import sys; print('python -m tests.proof.sim --seed 5'); sys.exit(2)"
    finder = Stage("finder", "finds", "x", share=1.0)
    monkeypatch.setattr(Stage, "words", lambda self, **_: [sys.executable, "-c", code])
    long = Stage("long", "takes long", "x", needs_minutes=90)
    monkeypatch.setattr(soak, "SEARCHES", (finder,))
    monkeypatch.setattr(soak, "WHOLE", (long,))
    monkeypatch.setattr(soak, "LOGS", tmp_path)
    assert soak.main(["--minutes", "1", "--seed", "3"]) == 1
    said = capsys.readouterr().out
    assert "did not run: long: needs 90 minutes, 1 left" in said
    assert f"FOUND: finder (exit code 2, {tmp_path}/finder.log): .venv/bin/python" in said
    assert "python -m tests.proof.sim --seed 5" in said


def test_a_soak_that_finds_nothing_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(soak, "SEARCHES", (QUIET,))
    monkeypatch.setattr(soak, "LOGS", tmp_path)
    assert soak.main(["--minutes", "0.1", "--only", "quiet"]) == 0
    assert "1 stages found nothing: quiet" in capsys.readouterr().out
