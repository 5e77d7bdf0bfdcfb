"""The program that compares mirrors with their tables: a short run, and that it can fail."""

from __future__ import annotations

import pytest

from tests.proof.mirrors import __main__ as program
from tests.proof.mirrors import mirrored_work

pytest.importorskip("deltalake", reason="pip install 'walkeeper[lake]'")
pytestmark = [
    pytest.mark.soak,
    pytest.mark.postgres,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def test_mirrors_are_their_tables_through_kills(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--rounds", "2", "--load", "4"]) == 0
    assert "20 tables equal" in capsys.readouterr().out.splitlines()[-1]


def test_a_mirror_with_another_row_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = mirrored_work.mirrored
    monkeypatch.setattr(
        mirrored_work, "mirrored", lambda folder, name: ["wrong", *real(folder, name)[1:]]
    )
    assert program.main(["--rounds", "1", "--load", "1"]) == 1
    assert "FOUND: pgbench_accounts: 100000 rows" in capsys.readouterr().out
