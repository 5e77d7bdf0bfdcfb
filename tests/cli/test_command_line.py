"""The command line itself: usage errors, where values come from, help. No server, no PostgreSQL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from tests.support.waiting import LIMIT_S
from walkeeper_archive.layout import Packing
from walkeeper_archive.open_store import open_store
from walkeeper_cli.options import Duration, HostPort, HostPorts, Size
from walkeeper_cli.program import COMMANDS, cli, run
from walkeeper_common.addresses import is_loopback, parse_address, shown_address
from walkeeper_common.errors import Refused
from walkeeper_proposer.proposer_settings import ProposerSettings
from walkeeper_safekeeper.safekeeper_settings import ArchiveSettings, SafekeeperSettings

THREE = "h1:1,h2:2,h3:3"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DSN", "SAFEKEEPERS", "DATA_DIR", "LISTEN", "ID", "CONFIG", "CLUSTER"):
        monkeypatch.delenv(f"WALKEEPER_{name}", raising=False)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The settings that daemons were started with."""
    seen: list[Any] = []

    def run_daemon(settings: object) -> int:
        seen.append(settings)
        return 0

    monkeypatch.setattr("walkeeper_safekeeper.safekeeper_daemon.run", run_daemon)
    monkeypatch.setattr("walkeeper_proposer.proposer_daemon.run", run_daemon)
    return seen


Complaint = Callable[..., str]


@pytest.fixture
def complaint(capsys: pytest.CaptureFixture[str]) -> Complaint:
    """The text of a usage error; asserts that it is one."""

    def call(*arguments: str) -> str:
        assert run(list(arguments)) == 2
        return capsys.readouterr().err

    return call


def test_every_command_teaches_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    overview = capsys.readouterr().out
    for name in COMMANDS:
        assert name in overview
        assert run([name, "--help"]) == 0
        text = capsys.readouterr().out
        assert f"walkeeper {name} " in text, f"{name} --help shows no example"
        assert max(map(len, text.splitlines())) <= 100


def test_the_version_is_the_distributions(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("walkeeper 0.")


def test_the_console_script_refuses_to_run_without_assertions() -> None:
    command = [sys.executable, "-O", "-m", "walkeeper_cli", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 1 and "do not use python -O" in done.stderr


def test_naming_a_command_does_not_import_the_others() -> None:
    code = (
        "import sys; from walkeeper_cli.program import run; run(['attach', '--help']); "
        "heavy = {'asyncpg', 'uvloop', 'psycopg', 'walkeeper_safekeeper.safekeeper_daemon'}; "
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr


def test_table_at_starts_without_a_database_client() -> None:
    """psycopg and asyncio take as long to load as numpy and Arrow together."""
    code = (
        "import sys, walkeeper_cli.history.replay_commands; "
        "heavy = {'asyncio', 'psycopg'} & set(sys.modules); sys.exit(str(heavy) if heavy else 0)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr


def test_usage_errors_exit_2_and_name_the_option(complaint: Complaint) -> None:
    assert "No such command 'atach'" in complaint("atach")
    assert "--dsn" in complaint("attach")
    assert "--bogus" in complaint("detach", "--bogus")
    assert "HOST:PORT" in complaint("status", "--safekeepers", "h1")
    assert "is there twice" in complaint("status", "--safekeepers", "h1:1,h1:1")
    assert "60s or 5min" in complaint("attach", "--dsn", "", "--timeout", "soon")
    assert "a-z, 0-9 and _" in complaint(
        "create", "--dsn", "", "--safekeepers", THREE, "--slot", "My-Slot"
    )
    assert "--slot" in complaint("create", "--dsn", "", "--safekeepers", THREE, "--cluster", "MyDb")
    assert "*" in complaint("attach", "--dsn", "", "--application-name", "*")
    assert "choose one" in complaint("bench", "commit", "--tls", "--slow-path")


def test_archive_flags_reach_the_daemon(
    started: list[Any], complaint: Complaint, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = ["safekeeper", "--id", "3", "--data-dir", "/d", "--listen", "h:1"]
    base += ["--wal-size-max", "5GB"]
    monkeypatch.setenv("WALKEEPER_ARCHIVE", "s3://bucket/p")
    assert run([*base, "--archive-compress", "zstd", "--archive-tail-interval", "5min"]) == 0
    assert started[0].archive == ArchiveSettings("s3://bucket/p", Packing.ZSTD, 300.0)
    assert started[0].wal_bytes_max == 5 << 30
    assert "none, zstd" in complaint(*base, "--archive-compress", "gzip").replace("'", "")


def test_safekeeper_flags_reach_the_daemon(started: list[Any]) -> None:
    arguments = "safekeeper --id 3 --data-dir /d --listen [::1]:0 --wal-keep-size 16MB"
    assert (
        run(
            [*arguments.split(), "--http", "h:0", "--allow-unauthenticated", "--log-level", "debug"]
        )
        == 0
    )
    assert started == [
        SafekeeperSettings(
            acceptor_id=3,
            data_dir="/d",
            listen=("::1", 0),
            http=("h", 0),
            wal_keep_bytes=16 << 20,
            allow_unauthenticated=True,
            log_level="DEBUG",
        )
    ]


def test_names_of_slot_and_proposer_follow_the_cluster(started: list[Any]) -> None:
    base = ["proposer", "--safekeepers", THREE, "--dsn", "host=x"]
    assert run(base) == 0
    assert run([*base, "--cluster", "b", "--apply", "standbys", "--resume", "--take-over"]) == 0
    assert run([*base, "--cluster", "my-db", "--slot", "s", "--allow-unsafe-settings"]) == 0
    addresses = (("h1", 1), ("h2", 2), ("h3", 3))
    assert started[0] == ProposerSettings(safekeepers=addresses, dsn="host=x")
    assert (started[1].slot, started[1].application_name) == ("walkeeper_b", "walkeeper_b")
    assert (started[1].apply_quorum, started[1].resume, started[1].take_over) == (
        False,
        True,
        True,
    )
    assert (started[2].slot, started[2].application_name) == ("s", "walkeeper_my-db")
    assert started[2].unsafe_settings
    assert run([*base, "--cluster", "my-db.eu"]) == 0
    assert (started[3].slot, started[3].application_name) == (
        "walkeeper_my_db_eu",
        "walkeeper_my-db.eu",
    )


def test_options_come_from_flag_then_environment_then_table_then_top_level(
    started: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "walkeeper.toml"
    file.write_text(
        'safekeepers = ["h1:1", "h2:2"]\ndsn = "host=top"\ncluster = "c"\ndata-dir = "/d"\n'
        '[proposer]\ndsn = "host=table"\napplication-name = "table"\ntake_over = true\n'
        "[safekeeper]\nid = 7\nlisten = '127.0.0.1:0'\nwal-keep-size = '2GB'\n"
    )
    assert run(["--config", str(file), "proposer"]) == 0
    assert run(["proposer", "--config", str(file)]) == 0
    assert started[0] == started[1]
    assert started[0].safekeepers == (("h1", 1), ("h2", 2))
    assert (started[0].dsn, started[0].cluster, started[0].take_over) == (
        "host=table",
        "c",
        True,
    )
    monkeypatch.setenv("WALKEEPER_CONFIG", str(file))
    monkeypatch.setenv("WALKEEPER_DSN", "host=environment")
    monkeypatch.setenv("WALKEEPER_APPLICATION_NAME", "environment")
    assert run(["proposer", "--application-name", "flag"]) == 0
    assert (started[2].dsn, started[2].application_name) == ("host=environment", "flag")
    assert run(["safekeeper"]) == 0
    assert (started[3].acceptor_id, started[3].data_dir) == (7, "/d")
    assert started[3].wal_keep_bytes == 2 << 30


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dns = 'x'", "no command has an option 'dns'"),
        ("[proposer]\ndns = 'x'", "[proposer] has no option 'dns'"),
        ("[propser]\ndsn = 'x'", "[propser] is not a command"),
        ("dsn = ", "walkeeper.toml"),
        ("take-over = true\ntake_over = false", "are the same option"),
        ("\ufeffdns = 'x'", "no command has an option 'dns'"),
    ],
)
def test_a_misspelt_key_in_the_file_is_an_error(
    text: str, expected: str, tmp_path: Path, complaint: Complaint
) -> None:
    file = tmp_path / "walkeeper.toml"
    file.write_text(text)
    assert expected in complaint("proposer", "--config", str(file))


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("WALKEEPER_DATADIR", "WALKEEPER_DATA_DIR"),
        ("WALKEEPER_WAL_KEEPSIZE", "WALKEEPER_WAL_KEEP_SIZE"),
        ("WALKEEPER_DATA_DIR", None),
        ("WALKEEPER_XID", None),  # history's, although it looks like ID
        ("WALKEEPER_LISTEN_PORT", None),  # Kubernetes makes such
    ],
)
def test_a_misspelt_variable_is_reported(
    variable: str,
    meant: str | None,
    monkeypatch: pytest.MonkeyPatch,
    started: list[Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(variable, "5")
    assert run(["safekeeper", "--id", "3", "--data-dir", "/d", "--listen", "h:1"]) == 0
    said = capsys.readouterr().err
    expected = meant and f"walkeeper: nothing reads {variable}: did you mean {meant}?\n"
    assert said == (expected or "")


def test_a_daemons_exit_code_is_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("walkeeper_safekeeper.safekeeper_daemon.run", lambda settings: 1)
    assert run(["safekeeper", "--id", "1", "--data-dir", "/d", "--listen", "127.0.0.1:0"]) == 1


def test_an_expected_error_is_one_line_and_exit_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(settings: object) -> int:
        raise Refused("first\n\tsecond")

    monkeypatch.setattr("walkeeper_safekeeper.safekeeper_daemon.run", refuse)
    assert run(["safekeeper", "--id", "1", "--data-dir", "/d", "--listen", "127.0.0.1:0"]) == 1
    assert capsys.readouterr().err == "walkeeper: error: first second\n"


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("1GB", 1 << 30), ("16 mb", 16 << 20), ("8kB", 8192), ("3B", 3)]
)
def test_sizes(text: str, size: int) -> None:
    assert Size().convert(text, None, None) == size


@pytest.mark.parametrize(
    ("text", "seconds"), [("60s", 60), ("5min", 300), ("500ms", 0.5), ("2", 2), ("1.5h", 5400)]
)
def test_durations(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "h", ":1", "h:", "h:0", "h:65536", "h:-1", "::1:5", "h:x"])
def test_a_text_that_is_no_address_is_a_bad_parameter(text: str) -> None:
    with pytest.raises(click.BadParameter):
        HostPort().convert(text, None, None)


@pytest.mark.parametrize("host", ["10.0.0..3", "a" * 64 + ".x", ".", "h\udcff", "h\0"])
def test_a_host_that_nobody_can_look_up_is_no_address(host: str) -> None:
    with pytest.raises(click.BadParameter, match="cannot be a host's name"):
        HostPorts().convert(f"{host}:5454,127.0.0.1:5455", None, None)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.255.0.2", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("128.0.0.1", False),
        ("127.example.com", False),
    ],
)
def test_loopback_hosts_are_known_as_such(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize("text", ["1XB", "-1", "1.5GB", "GB", "", "9999999TB", "9" * 5000])
def test_a_text_that_is_no_size_is_a_bad_parameter(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Size().convert(text, None, None)


@pytest.mark.parametrize("text", ["-1s", "1 year", "", "1e9", "9" * 300, "3651d"])
def test_a_text_that_is_no_duration_is_a_bad_parameter(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Duration().convert(text, None, None)


def test_addresses_may_have_blanks_and_ipv6() -> None:
    found = HostPorts().convert("h1:1, [::1]:5454", None, None)
    assert found == (("h1", 1), ("::1", 5454))


def test_every_option_has_an_environment_variable() -> None:
    context = click.Context(cli)
    commands = {name: cli.get_command(context, name) for name in COMMANDS}
    for name, group in list(commands.items()):
        if isinstance(group, click.Group):
            commands |= {f"{name} {inner}": c for inner, c in group.commands.items()}
    assert len(commands) > len(COMMANDS)
    for name, command in commands.items():
        assert command is not None
        for parameter in command.params:
            if isinstance(parameter, click.Argument):
                continue  # PostgreSQL's values for %f and %p
            flag = max(parameter.opts, key=len).removeprefix("--").replace("-", "_").upper()
            # an archive in use, not one of ours
            theirs = name.startswith("bench ") and flag == "ARCHIVE"
            expected = None if theirs else f"WALKEEPER_{flag}"
            assert parameter.envvar == expected, f"{name} {parameter.opts}"


def test_errors_are_reported_before_a_log_is_fenced_or_made(
    complaint: Complaint,
) -> None:
    said = complaint("settle", "--safekeepers", THREE, "--seal", "--replayed-by", "hots=standby")
    assert "--replayed-by" in said and 'invalid connection option "hots"' in said
    create = ["create", "--safekeepers", THREE, "--dsn", "host=h", "--slot", "s"]
    assert "cannot name a cluster" in complaint(*create, "--cluster", "My.DB!")
    assert 'missing "=" after "x"' in complaint("attach", "--dsn", "x")
    safekeeper = ["safekeeper", "--id", "1", "--listen", "h:1", "--data-dir"]
    assert "the path is empty" in complaint(*safekeeper, "")
    assert r"'/d\r' has control characters" in complaint(*safekeeper, "/d\r")
    # An answer within no time would be no quorum, and somebody's page.
    assert "greater than 0" in complaint(
        "status", "--safekeepers", THREE, "--check", "--timeout", "0"
    )


def test_an_empty_archive_is_no_directory() -> None:
    with pytest.raises(Refused, match="empty text is no place"):
        open_store("")


def test_an_option_that_may_be_repeated_is_a_list_in_the_file(
    complaint: Complaint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "walkeeper.toml"
    file.write_text('[archive]\nkeep = ["7d", "/no/such/backup"]\n')
    assert "no/such/backup" in complaint("archive", "prune", str(tmp_path), "--config", str(file))
    monkeypatch.setenv("WALKEEPER_KEEP", "nonsense")
    assert "nonsense" in complaint("archive", "prune", str(tmp_path))


def test_logical_and_a_publication_go_together(complaint: Complaint) -> None:
    for half in (("--logical",), ("--publication", "p")):
        told = complaint("proposer", "--safekeepers", THREE, "--dsn", "", *half)
        assert "--logical and --publication NAME go together" in told
    twice = complaint(
        "proposer", "--safekeepers", THREE, "--dsn", "", "--logical", "--publication", "p,p"
    )
    assert "each of them once" in twice
    for option in (("--messages",), ("--spool-dir", "/tmp")):
        told = complaint("proposer", "--safekeepers", THREE, "--dsn", "", *option)
        assert f"{option[0]} is for --logical" in told


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_an_output_that_is_full_is_one_line() -> None:
    command = [sys.executable, "-m", "walkeeper_cli", "status", "--safekeepers", "127.0.0.1:1"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S
        )
    assert (done.returncode, done.stderr) == (1, "walkeeper: error: No space left on device\n")


def test_a_reader_that_has_gone_ends_a_command_quietly() -> None:
    command = f"{sys.executable} -m walkeeper_cli status --safekeepers 127.0.0.1:1"
    piped = ["bash", "-c", f"{command} | true; exit ${{PIPESTATUS[0]}}"]
    done = subprocess.run(piped, capture_output=True, text=True, timeout=LIMIT_S)
    assert (done.returncode, done.stderr) in ((1, ""), (0, ""))


@pytest.mark.skipif(os.geteuid() != 0, reason="a namespace of processes needs root")
def test_the_first_process_of_a_container_ends_at_sigterm() -> None:
    """For which the kernel does nothing by default; a container's stop would take its 10 s."""
    words = ("status", "--watch", "--safekeepers", "127.0.0.1:1")
    command = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-m", "walkeeper_cli"]
    with subprocess.Popen([*command, *words], stdout=subprocess.PIPE, text=True) as unshare:
        assert unshare.stdout is not None and "state" in unshare.stdout.readline()
        first = Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children").read_text()
        os.kill(int(first), signal.SIGTERM)
        try:
            assert unshare.wait(LIMIT_S) == 128 + signal.SIGTERM
        finally:
            unshare.kill()


@pytest.mark.parametrize("text", ["127.0.0.1:5454", "db1:1", "[::1]:5454", "[fe80::1%eth0]:65535"])
def test_an_address_is_shown_as_options_take_it(text: str) -> None:
    address = HostPort().convert(text, None, None)
    assert shown_address(address) == text
    assert parse_address(text) == parse_address(text.replace("[", "").replace("]", "")) == address


@pytest.mark.parametrize(
    "text",
    ["10.0.0.1", "10.0.0.1:", "10.0.0.1:x", ":-1", "", "10.0.0.1:65536", "h:" + "9" * 5000]
    + [":5454", "a..b:5454", "a" * 64 + ":5454", "a\0b:5454"],
)
def test_a_text_that_is_no_address_of_a_safekeeper_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="is no address"):
        parse_address(text)


@pytest.mark.parametrize(
    "words", ["archive ls here", "safekeeper --id 1 --listen 127.0.0.1:1 --data-dir here"]
)
def test_a_current_directory_that_was_removed_is_one_line(words: str, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    command = f'cd {place} && rmdir {place} && exec "$0" -m walkeeper_cli {words}'
    ran = subprocess.run(["sh", "-c", command, sys.executable], capture_output=True, text=True)
    assert ran.returncode == 1
    assert ran.stderr == "walkeeper: error: the current directory is gone: change to one\n"


TERMINATED = """
import os, signal, sys, time
from walkeeper_cli.program import cli, main
from walkeeper_history.whole_file import whole_file

@cli.command("rows")
def rows():
    with whole_file("rows.csv") as file:
        file.write(b"half")
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(3600)

cli.get_command = lambda context, name: rows
sys.argv[1:] = ["rows"]
{before}
main()
"""


@pytest.mark.parametrize(
    "before", ["", "signal.signal(signal.SIGINT, signal.SIG_IGN)"], ids=["", "SIGINT is ignored"]
)
def test_a_command_that_is_terminated_takes_away_what_is_half_written(
    tmp_path: Path, before: str
) -> None:
    """Each night's time limit left another copy; a shell's background jobs ignore SIGINT."""
    command = [sys.executable, "-c", TERMINATED.format(before=before)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (-signal.SIGTERM, "", "")
    assert not list(tmp_path.iterdir())
