"""Runs PostgreSQL's own tests of subscriptions through logical logs.

    python -m tests.proof.subscription_tests --source DIR             DIR: PostgreSQL's source
    python -m tests.proof.subscription_tests --source DIR 001 028     two of them
    python -m tests.proof.subscription_tests --source DIR --stock     without a log, to compare

The tests are those of DIR/src/test/subscription/t, unchanged. ThroughLog.pm gives their CREATE
SUBSCRIPTION a safekeeper's address. The server is the installed one of that major version. Perl
needs IPC::Run (Debian: libipc-run-perl), perhaps by PERL5LIB.

Exit codes: 0 each test passes or has its reason (reasons.py), 1 not so, 2 usage.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.proof.subscription_tests.attached_logs import LogServer
from tests.proof.subscription_tests.reasons import REASONS
from tests.support.postgres_server import binary_directory, make_directory, own, server_user
from tests.support.program_parser import program_parser

HERE = Path(__file__).parent
TEST_LIMIT_S = 1800
POLL_LIMIT_S = 60
ERROR = re.compile(r"ERROR:|HINT:|timed out|Can't|ThroughLog:")
OK, NOT_OK = re.compile(r"^ok \d", re.MULTILINE), re.compile(r"^not ok \d.*", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One test: its exit code, how many of its checks passed, and what it said of the others."""

    name: str
    code: int
    passed: int
    failures: tuple[str, ...]
    last_words: str

    @property
    def has_passed(self) -> bool:
        return self.code == 0 and not self.failures

    def __str__(self) -> str:
        state = "passed" if self.has_passed else f"exit code {self.code}"
        lines = [f"{self.name}: {state}, {self.passed} checks", *self.failures]
        if not self.has_passed:
            lines.append(self.last_words)
        return "\n    ".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests one after another, and compare with REASONS."""
    asked = _arguments(arguments)
    tests = sorted((asked.source / "src/test/subscription/t").glob("*.pl"))
    if asked.tests:
        tests = [path for path in tests if path.name.startswith(tuple(asked.tests))]
    if not tests:
        sys.stderr.write(f"{asked.source} has none of these tests: name PostgreSQL's source\n")
        return 2
    is_right, passed = True, 0
    for path in tests:
        outcome = run(path, asked.source, is_stock=asked.stock, keeps=asked.keep)
        wanted = asked.stock or path.stem not in REASONS
        is_right &= outcome.has_passed is wanted
        passed += outcome.has_passed
        sys.stdout.write(f"{outcome}\n")
        if outcome.has_passed is not wanted:
            sys.stdout.write(f"    expected: {REASONS.get(path.stem, 'passed')}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{passed} of {len(tests)} passed\n")
    return 0 if is_right else 1


def run(path: Path, source: Path, *, is_stock: bool, keeps: bool) -> Outcome:
    """Run one test in a directory of its own."""
    directory = make_directory("walkeeper_subscription_")
    binaries = binary_directory()
    variables = {
        "PATH": f"{binaries}:/usr/bin:/bin",
        "PERL5LIB": f"{source}/src/test/perl:{os.environ.get('PERL5LIB', '')}",
        "PG_REGRESS": str(binaries.parent / "lib/pgxs/src/test/regress/pg_regress"),
        "PG_TEST_TIMEOUT_DEFAULT": str(POLL_LIMIT_S),
        "PGPORT": "65432",
        "TESTDIR": str(directory),
        "with_icu": "yes",
        "LANG": "C.UTF-8",  # as SQL_ASCII a database has no logical log
        "HOME": str(directory),
    }
    try:
        with ExitStack() as stack:
            command = ["perl"]
            if not is_stock:
                server = stack.enter_context(LogServer(directory))
                variables["THROUGH_LOG"] = str(server.path)
                shutil.copy(HERE / "ThroughLog.pm", directory)
                own(directory / "ThroughLog.pm")
                command += ["-I", str(directory), "-MThroughLog"]
            done = _performed([*command, f"t/{path.name}"], path.parents[1], variables)
        log = directory / "tmp_check" / "log" / f"regress_log_{path.stem}"
        said = done.stderr + (log.read_text(errors="replace") if log.exists() else "")
    finally:
        _stop_servers(directory)
        if keeps:
            sys.stdout.write(f"{path.stem}: {directory}\n")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    return Outcome(
        path.stem,
        done.returncode,
        len(OK.findall(done.stdout)),
        tuple(NOT_OK.findall(done.stdout)),
        _last_words(said),
    )


def _performed(
    command: list[str], directory: Path, variables: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    done: subprocess.CompletedProcess[str]
    try:
        done = subprocess.run(
            command, cwd=directory, env=variables, user=server_user(), group=server_user(),
            extra_groups=[] if server_user() else None, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=TEST_LIMIT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        said = (error.stdout or b"").decode(errors="replace")
        done = subprocess.CompletedProcess(command, 124, said, f"longer than {TEST_LIMIT_S} s")
    return done


def _stop_servers(directory: Path) -> None:
    """Stop servers of a test that ended before it did so."""
    for file in directory.glob("tmp_check/*/pgdata/postmaster.pid"):
        with suppress(ProcessLookupError, ValueError, IndexError):
            os.kill(int(file.read_text().splitlines()[0]), signal.SIGQUIT)


def _last_words(said: str) -> str:
    """Return the errors that ended the test, in a line."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if ERROR.search(line)]
    return " ".join((errors or lines)[-2:])[:400]


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = program_parser("tests.proof.subscription_tests", __doc__)
    parser.add_argument("--source", type=Path, required=True, help="PostgreSQL's source")
    parser.add_argument("--stock", action="store_true", help="leave out the log")
    parser.add_argument("--keep", action="store_true", help="leave each test's directory")
    parser.add_argument("tests", nargs="*", help="how their names begin  [all]")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
