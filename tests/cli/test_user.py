"""`walkeeper user` writes the users file: whole, for its owner alone, and without a password."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from walkeeper_cli.program import cli
from walkeeper_common.access.identity import Role
from walkeeper_common.access.users import parse_users
from walkeeper_common.errors import Refused
from walkeeper_common.shell.files.users_file import load_users

VERIFIER = "SCRAM-SHA-256$4096:c2FsdA==$" + "A" * 43 + "=:" + "A" * 43 + "="


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "users"


@pytest.fixture
def run(path: Path) -> Callable[..., Result]:
    def run_user(command: str, *words: str, stdin: str = "") -> Result:
        line = ["user", command, "--users", str(path), *words]
        return CliRunner().invoke(cli, line, input=stdin)

    return run_user


def test_a_user_comes_and_goes_and_other_lines_stay(path: Path, run: Callable[..., Result]) -> None:
    path.write_text('; kept for standbys\n\n"old" "' + VERIFIER + '" role=pager  cluster=a,b\n')
    before = path.read_text()
    added = run("add", "standby1", "--role", "replica", "--connections", "4", stdin="sesame\n")
    assert added.exit_code == 0, added
    assert path.read_text().startswith(before) and "sesame" not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    old, new = load_users(str(path))
    assert old.clusters == frozenset("ab") and old.roles == {Role.PAGER}
    assert new.connections_max == 4 and new.clusters is None
    shown = json.loads(run("ls", "--json").output)
    assert [each["name"] for each in shown] == ["old", "standby1"]
    assert "4096" not in run("ls").output
    assert run("rm", "standby1").exit_code == 0 and path.read_text() == before


def test_a_known_name_is_replaced_only_on_request(path: Path, run: Callable[..., Result]) -> None:
    assert run("add", "a", "--role", "monitor", stdin="one\n").exit_code == 0
    assert run("add", "b", "--role", "monitor", stdin="one\n").exit_code == 0
    first = path.read_text()
    refused = run("add", "a", "--role", "replica", stdin="two\n")
    assert isinstance(refused.exception, Refused) and "--replace" in str(refused.exception)
    assert path.read_text() == first
    assert run("add", "a", "--role", "replica", "--replace", stdin="two\n").exit_code == 0
    assert [user.name for user in load_users(str(path))] == ["a", "b"]


def test_a_verifier_of_pg_authid_stays_as_it_is(path: Path, run: Callable[..., Result]) -> None:
    assert run("add", "a", "--role", "replica", stdin=VERIFIER).exit_code == 0
    assert VERIFIER in path.read_text()


def test_a_generated_password_is_printed_once(path: Path, run: Callable[..., Result]) -> None:
    made = run("add", "a", "--role", "replica", "--generate")
    assert len(made.output.strip()) == 32 and made.output.strip() not in path.read_text()


@pytest.mark.parametrize(
    ("words", "stdin", "said"),
    [
        (("a", "--role", "replica"), "\n", "empty"),
        (("a", "--role", "replica"), "x" * 2000, "more than 1024"),
        (("a b", "--role", "replica"), "x\n", "no name for a user"),
        (("a", "--role", "replica", "--cluster", "no/name"), "x\n", "no/name"),
        (("a", "--role", "replica"), "SCRAM-SHA-256$x\n", "no SCRAM-SHA-256 verifier"),
    ],
)
def test_what_no_line_can_have_is_refused_and_no_file_is_made(
    path: Path, run: Callable[..., Result], words: tuple[str, ...], stdin: str, said: str
) -> None:
    refused = run("add", *words, stdin=stdin)
    assert isinstance(refused.exception, Refused) and said in str(refused.exception)
    assert not path.exists()


def test_a_name_that_is_not_there_is_not_removed(path: Path, run: Callable[..., Result]) -> None:
    path.touch(0o600)
    assert "has no user a" in str(run("rm", "a").exception)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('"a" "md5123" role=replica', "no SCRAM-SHA-256 verifier"),
        ('"a" "secret"', "no SCRAM-SHA-256 verifier"),
        (f'"a" "{VERIFIER}"', "no role is given"),
        (f'"a" "{VERIFIER}" role=boss', "unknown role"),
        (f'"a" "{VERIFIER}" role=proposer', "certs issue"),
        (f'"a" "{VERIFIER}" role=replica role=admin', "each of them once"),
        (f'"a" "{VERIFIER}" role=replica slots=2', "slots=2"),
        (f'"a" "{VERIFIER}" role=replica connections=0', "must be 1 to"),
        (f'"a" "{VERIFIER}" role=replica connections=x', "no number"),
        (f'"a" "{VERIFIER}" role=replica cluster=', "cluster"),
        (f"a {VERIFIER} role=replica", "user add writes"),
        (f'"a" "{VERIFIER}" role=pager\n"a" "{VERIFIER}" role=pager', "line 3: the user a is"),
    ],
)
def test_a_bad_line_is_named_and_its_secret_is_not(line: str, said: str) -> None:
    with pytest.raises(Refused) as refused:
        parse_users(f"; head\n{line}\n")
    assert said in str(refused.value) and "line " in str(refused.value)
    assert "AAAA" not in str(refused.value) and "md5123" not in str(refused.value)
