"""The exit codes of `walkeeper restore`, as processes: PostgreSQL takes them for verdicts.

0: the file is there. 1: proven absent. Everything that can go wrong must be 126 or more, or a
signal; here is all that can go wrong before a safekeeper has answered.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.restore_installation import Installation, installed
from tests.support.waiting import LIMIT_S
from walkeeper_lab.local.tcp_ports import free_port
from walkeeper_restore.guard import is_restore

SEGMENT = "000000010000000000000003"
NOBODY = f"127.0.0.1:{free_port()}"


@pytest.fixture(scope="module")
def installation() -> Iterator[Installation]:
    with installed() as made:
        yield made


def restore(
    installation: Installation, directory: Path, *arguments: str
) -> subprocess.CompletedProcess[str]:
    command = [str(installation.script), *arguments]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=LIMIT_S)


@pytest.mark.parametrize(
    "arguments",
    [
        ("restore",),
        ("restore", "--bogus", SEGMENT, "x"),
        ("restore", "--safekeepers", "nonsense", SEGMENT, "x"),
        ("restore", "--safekeepers", NOBODY, SEGMENT),
        ("restore", "--safekeepers", NOBODY, "--wait", "soon", SEGMENT, "x"),
        ("restore", "--safekeepers", NOBODY, "--min-lsn", "12", SEGMENT, "x"),
        ("restore", "--safekeepers", NOBODY, "--min-lsn", "", SEGMENT, "x"),
        ("restore", "--archive", "", SEGMENT, "x"),
        ("restore", "--safekeepers", NOBODY, "--config", "/none.toml", SEGMENT, "x"),
        ("--bogus", "restore", "--safekeepers", NOBODY, SEGMENT, "x"),
        ("--config", "/none.toml", "restore", "--safekeepers", NOBODY, SEGMENT, "x"),
        ("restor", "--safekeepers", NOBODY, SEGMENT, "x"),
        ("--safekeepers", NOBODY, SEGMENT, "x"),
        ("restore", "--help", SEGMENT, "x"),
        ("restore", "--help", "00000002.history", "x"),
        ("restore", "--safekeepers", NOBODY, "--wait", "0", SEGMENT, "x"),
        ("restore", "--safekeepers", NOBODY, "--wait", "0", "00000002.history", "x"),
        ("restore", "--safekeepers", NOBODY, "--wait", "0", "no_wal.txt", "x"),
        ("restore", "--safekeepers", NOBODY, "--wait", "0", SEGMENT, "/no/such/directory/x"),
    ],
)
def test_every_failure_exits_with_126(
    installation: Installation, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    done = restore(installation, tmp_path, *arguments)
    assert done.returncode == 126, done
    assert done.stderr or done.stdout
    assert not list(tmp_path.iterdir())


def test_help_without_a_file_is_no_failure(installation: Installation, tmp_path: Path) -> None:
    done = restore(installation, tmp_path, "restore", "--help")
    assert done.returncode == 0 and "restore_command = " in done.stdout


@pytest.mark.parametrize(
    "module",
    [
        "walkeeper_cli",
        "walkeeper_cli/start.py",
        "walkeeper_restore/guard.py",
        "walkeeper_cli/program.py",
        "walkeeper_restore/entry.py",
        "walkeeper_restore/spool.py",
        "walkeeper_restore/restoring.py",
        "walkeeper_cli/commands/restore.py",
        "walkeeper_common",
        "walkeeper_common/wire/framing.py",
        "click",
    ],
)
def test_a_missing_module_is_126(installation: Installation, tmp_path: Path, module: str) -> None:
    with installation.without(module):
        done = restore(installation, tmp_path, "restore", "--safekeepers", NOBODY, SEGMENT, "x")
    assert done.returncode == 126 and "broken" in done.stderr, done


@pytest.mark.parametrize("text", ["syntax error here", "raise SystemExit(1)", "1 / 0"])
def test_a_damaged_module_is_126(installation: Installation, tmp_path: Path, text: str) -> None:
    path = installation.packages / "walkeeper_common" / "wire" / "framing.py"
    kept = path.read_text()
    path.write_text(text)
    try:
        done = restore(installation, tmp_path, "restore", "--safekeepers", NOBODY, SEGMENT, "x")
    finally:
        path.write_text(kept)
    assert done.returncode == 126, done


def test_without_assertions_it_is_126(installation: Installation, tmp_path: Path) -> None:
    folder = installation.script.parent
    python = (str(folder / "python"), "-O", str(folder / "walkeeper-python"))
    command = [*python, "restore", "--safekeepers", NOBODY, SEGMENT, "x"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 126 and "-O" in done.stderr


HELP = ("restore", "--help")
FOREIGN = {  # variables of a server for other Pythons; with the first, none starts
    "PYTHONHOME": "/nonexistent",
    "PYTHONPATH": "/nonexistent",
    "PYTHONHASHSEED": "abc",
    "PYTHON_GIL": "PYTHON-x",
    "PYTHONIOENCODING": "none such",
    "OTHER": "a PYTHON/3\nPYTHONX;false * $(false)",
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_servers_environment_for_other_pythons_makes_no_verdict(
    installation: Installation, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, FOREIGN[name])
    arguments = ("restore", "--safekeepers", NOBODY, "--wait", "0", SEGMENT, "x")
    for before in ((), ("--log-level", "restore", "--config", "/none.toml")):
        assert restore(installation, tmp_path, *before, *arguments).returncode == 126
    done = restore(installation, tmp_path, *HELP)
    assert done.returncode == 0 and "restore_command = " in done.stdout


def test_a_link_to_the_command_is_the_command(installation: Installation, tmp_path: Path) -> None:
    (tmp_path / "walkeeper").symlink_to(installation.script)
    (tmp_path / "again").symlink_to("walkeeper")
    for command in ("./walkeeper", str(tmp_path / "again")):
        done = subprocess.run([command, *HELP], cwd=tmp_path, capture_output=True, timeout=LIMIT_S)
        assert done.returncode == 0 and b"restore_command = " in done.stdout, done
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(["walkeeper", *HELP], env=path, capture_output=True, timeout=LIMIT_S)
    assert done.returncode == 0, done


def test_a_shell_that_is_named_runs_the_command(installation: Installation) -> None:
    for named in (installation.script.name, f"bin/{installation.script.name}"):
        folder = str(installation.script)[: -len(named) - 1]
        done = subprocess.run(
            ["sh", named, *HELP], cwd=folder, capture_output=True, timeout=LIMIT_S
        )
        assert done.returncode == 0 and b"restore_command = " in done.stdout, done


def test_a_python_that_is_named_runs_the_command(
    installation: Installation, tmp_path: Path
) -> None:
    """As the command does: what is in the environment for another Python is not for restore."""
    (tmp_path / "click.py").write_text("raise SystemExit(1)")
    (tmp_path / "walkeeper").symlink_to(installation.script)
    python = str(installation.script.with_name("python"))
    environment = {"PYTHONPATH": str(tmp_path)}
    asked = ("restore", "--safekeepers", NOBODY, "--wait", "0", SEGMENT, "x")
    expected = {HELP: (0, b"Usage: "), asked: (126, b"gave up"), ("--nonsense",): (2, b"No such")}
    for script in (str(installation.script), str(tmp_path / "walkeeper")):
        for words, (code, said) in expected.items():
            command = [python, script, *words]
            foreign = environment if "restore" in words else {}
            done = subprocess.run(command, env=foreign, capture_output=True, timeout=LIMIT_S)
            assert done.returncode == code and said in done.stdout + done.stderr, done


def test_half_an_installation_makes_no_verdict(installation: Installation, tmp_path: Path) -> None:
    python = installation.script.with_name("walkeeper-python")
    (tmp_path / "walkeeper").symlink_to("nowhere")
    named = f"{python.with_name('python')} {installation.script}"
    for command in (installation.script, tmp_path / "walkeeper", named, f"{named} 2>&-"):
        away = python.rename(python.with_name("away"))
        try:
            done = subprocess.run(["sh", "-c", f"{command} restore {SEGMENT} x"], cwd=tmp_path)
        finally:
            away.rename(python)
        assert done.returncode >= 126


def test_the_module_form_is_guarded_as_well(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "walkeeper_cli", "restore", "--bogus", SEGMENT, "x"]
    assert subprocess.run(command, cwd=tmp_path, timeout=LIMIT_S).returncode == 126


def test_closed_standard_streams_make_no_verdict(
    installation: Installation, tmp_path: Path
) -> None:
    words = f"restore --safekeepers {NOBODY} --wait 0 {SEGMENT} x"
    for closed in (">&- 2>&-", "> /dev/full 2> /dev/full", "2>&-"):
        command = f"{installation.script} {words} {closed}"
        done = subprocess.run(["sh", "-c", command], cwd=tmp_path, timeout=LIMIT_S)
        assert done.returncode == 126, closed


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP])
def test_a_signal_ends_it_as_that_signal(
    installation: Installation, tmp_path: Path, number: signal.Signals
) -> None:
    """It waits for a safekeeper that takes the connection and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        command = [str(installation.script), "restore", "--safekeepers", address, SEGMENT, "x"]
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # nohup ignores it
        )
        connection, _ = listener.accept()
        with connection:
            connection.recv(1)
            process.send_signal(number)
            _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == -number, said
    assert not list(tmp_path.iterdir())


def test_a_standby_asks_for_ever_and_another_server_for_its_wait(
    installation: Installation, tmp_path: Path
) -> None:
    """A standby also tries a broken installation again: an upgrade may be under way."""
    arguments = ("restore", "--safekeepers", NOBODY, "--wait", "200ms", SEGMENT, "x")
    done = restore(installation, tmp_path, *arguments)
    assert done.returncode == 126 and "gave up after 0.2 s" in done.stderr
    (tmp_path / "standby.signal").touch()
    command = [str(installation.script), *arguments]
    with installation.without("walkeeper_common"):
        process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE)
        assert process.stderr is not None
        assert b"broken" in process.stderr.readline()
    assert b"waiting for" in process.stderr.readline()
    assert process.poll() is None
    process.kill()
    process.communicate()


def test_trying_a_broken_installation_again_cannot_end_as_a_verdict(
    installation: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No failure of the second try itself, such as a Python that is gone by then, is a verdict."""
    (tmp_path / "standby.signal").touch()
    monkeypatch.setenv("WALKEEPER_RESTORE_TRIES", "soon")
    for module in ("walkeeper_cli", "walkeeper_common"):
        with installation.without(module):
            done = restore(installation, tmp_path, "restore", "--safekeepers", NOBODY, SEGMENT, "x")
        assert done.returncode == 126 and "broken" in done.stderr, done


def test_an_orphan_stops_asking(installation: Installation, tmp_path: Path) -> None:
    """Its server was killed; another one must not be given what it did not ask for."""
    (tmp_path / "standby.signal").touch()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        command = f"{installation.script} restore --safekeepers {address} {SEGMENT} x & wait"
        parent = subprocess.Popen(["sh", "-c", command], cwd=tmp_path, stderr=subprocess.PIPE)
        for _ in range(2):  # so it asks, and asks again
            connection, _ = listener.accept()
            connection.close()
        parent.kill()
        assert parent.stderr is not None
        assert "the server that asked for this file is gone" in parent.stderr.read().decode()
        parent.stderr.close()
        parent.wait()


def test_only_what_postgresql_may_be_waiting_for_is_guarded() -> None:
    assert is_restore(["restore"])
    assert is_restore(["--log-level", "DEBUG", "restore", "--help"])
    assert is_restore(["--nonsense", "status", SEGMENT, "pg_wal/RECOVERYXLOG"])
    assert not is_restore(["status", "--safekeepers", "restore"])
    assert not is_restore(["--config", "restore", "status"])
    assert not is_restore([])
