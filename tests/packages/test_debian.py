"""The Debian packages as far as their text goes: control data, units, options, man pages.

`make deb` builds them, and `make deb-test` installs them in trees of Debian. Both take minutes and
root, so they are no part of the gate.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest

from tests.support.folders import ROOT
from walkeeper_cli.program import cli

DEBIAN, UNITS = ROOT / ".ci" / "debian", ROOT / "docs" / "systemd"
DAEMONS = {
    "walkeeper-safekeeper@.service": "safekeeper",
    "walkeeper-proposer.service": "proposer",
}
SERVICES = DAEMONS | {"walkeeper-check.service": "check"}
# Every service has these, whatever it may differ in.
HARDENED = {
    "CapabilityBoundingSet": "",
    "LockPersonality": "true",
    "MemoryDenyWriteExecute": "true",
    "NoNewPrivileges": "true",
    "PrivateDevices": "true",
    "PrivateTmp": "true",
    "ProtectClock": "true",
    "ProtectControlGroups": "true",
    "ProtectHostname": "true",
    "ProtectKernelLogs": "true",
    "ProtectKernelModules": "true",
    "ProtectKernelTunables": "true",
    "ProtectProc": "invisible",
    "ProtectSystem": "strict",
    "RemoveIPC": "true",
    "RestrictAddressFamilies": "AF_INET AF_INET6 AF_UNIX",
    "RestrictNamespaces": "true",
    "RestrictRealtime": "true",
    "RestrictSUIDSGID": "true",
    "SystemCallArchitectures": "native",
    "UMask": "0077",
    "User": "walkeeper",
}


def program(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def settings(unit: str) -> list[tuple[str, str]]:
    lines = (UNITS / unit).read_text().splitlines()
    return [
        (line.split("=", 1)[0], line.split("=", 1)[1])
        for line in lines
        if "=" in line and not line.startswith("#")
    ]


def stanzas() -> dict[str, dict[str, str]]:
    """Return the fields of each binary package in debian/control."""
    found = {}
    for text in (DEBIAN / "control").read_text().split("\n\n")[1:]:
        fields = dict(re.findall(r"^([\w-]+): (.*)$", text, re.MULTILINE))
        found[fields["Package"]] = fields
    return found


def options_of(command: str) -> set[str]:
    found = cli.get_command(click.Context(cli), command)
    assert found is not None
    shown = [p for p in found.params if not getattr(p, "hidden", False)]
    return {name for parameter in shown for name in parameter.opts}


def test_there_are_three_packages_and_the_services_need_the_same_version() -> None:
    found = stanzas()
    assert set(found) == {"walkeeper", "walkeeper-safekeeper", "walkeeper-proposer"}
    for name in ("walkeeper-safekeeper", "walkeeper-proposer"):
        assert "walkeeper (= ${binary:Version})" in found[name]["Depends"]
        assert found[name]["Architecture"] == "all"
    assert found["walkeeper"]["Architecture"] == "any", "its libraries are compiled"
    assert "${python:Depends}" in found["walkeeper"]["Depends"]


@pytest.mark.parametrize("unit", SERVICES)
def test_a_unit_is_hardened_and_runs_a_command(unit: str) -> None:
    found = settings(unit)
    assert dict(found).items() >= HARDENED.items()
    assert [value for name, value in found if name == "SystemCallFilter"] == [
        "@system-service",
        "~@privileged @resources",
    ]
    command = dict(found)["ExecStart"].split()
    assert command[:2] == ["/opt/walkeeper/bin/walkeeper", SERVICES[unit]]
    assert set(command[2::2]) <= options_of(SERVICES[unit])


@pytest.mark.parametrize("unit", DAEMONS)
def test_a_daemon_reloads_and_owns_its_directory(unit: str) -> None:
    """`systemctl reload` was refused, and a renewed file waited for the next connection."""
    found = dict(settings(unit))
    assert found["ExecReload"] == "/bin/sh -c 'kill -HUP $MAINPID'"
    assert found["StateDirectoryMode"] == "0700" and found["Type"] == "notify"


def test_systemd_finds_no_fault_in_a_unit(tmp_path: Path) -> None:
    """systemd-analyze is in Debian's package systemd, which `make test` asks for."""
    names = []
    for unit in sorted(UNITS.iterdir()):
        names.append(unit.name.replace("@.", "@1."))
        text = unit.read_text().replace("/opt/walkeeper/bin/walkeeper", "/bin/true")
        (tmp_path / unit.name).write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *names]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_packages_take_the_units_from_the_documents() -> None:
    rules = (DEBIAN / "rules").read_text()
    assert not list(DEBIAN.glob("*.service")), "docs/systemd is the one text"
    for unit in DAEMONS:
        assert f"$(UNIT)/{unit} > debian/{unit}" in rules
    for unit in ("walkeeper-check.service", "walkeeper-check.timer"):
        assert f"$(UNIT)/{unit} > debian/walkeeper.{unit}" in rules
    (shown,) = re.findall(r"^UNIT = sed 's,(.+),/usr/bin/walkeeper,' docs/systemd$", rules, re.M)
    assert all(shown in (UNITS / unit).read_text() for unit in SERVICES)
    assert (
        "usr/lib/walkeeper/bin/walkeeper usr/bin/walkeeper"
        in (DEBIAN / "walkeeper.links").read_text()
    )


@pytest.mark.parametrize("command", SERVICES.values())
def test_a_configuration_file_names_options_of_its_command(command: str) -> None:
    text = (DEBIAN / "conf" / f"{command}.env").read_text()
    named = set(re.findall(r"^#?WALKEEPER_(\w+)=", text, re.MULTILINE))
    assert named and {f"--{name.lower().replace('_', '-')}" for name in named} <= options_of(
        command
    )
    files = [
        value
        for unit, run in SERVICES.items()
        if run == command
        for name, value in settings(unit)
        if name == "EnvironmentFile"
    ]
    assert f"/etc/walkeeper/{command}.env" in [file.lstrip("-") for file in files]


def test_the_directory_of_the_unit_is_that_of_the_other_files() -> None:
    (state,) = [
        value
        for name, value in settings("walkeeper-safekeeper@.service")
        if name == "StateDirectory"
    ]
    data = f"/var/lib/{state}"
    assert f"WALKEEPER_DATA_DIR={data}\n" in (DEBIAN / "conf/safekeeper.env").read_text()
    rule = (DEBIAN / "walkeeper-safekeeper.tmpfiles").read_text()
    assert rule == f"d {data} 0700 walkeeper walkeeper -\n"
    assert (DEBIAN / "walkeeper.sysusers").read_text().split()[:2] == ["u", "walkeeper"]


def test_both_daemons_restart_with_an_upgrade_and_stop_with_a_removal() -> None:
    """With --no-start alone debhelper stopped a proposer at an upgrade, and started it never."""
    rules = (DEBIAN / "rules").read_text()
    assert "dh_installsystemd --no-enable --no-start --no-stop-on-upgrade\n" in rules
    for unit in ("walkeeper-safekeeper@*.service", "walkeeper-proposer.service"):
        assert f"'s,@UNITS@,{unit},' debian/daemon.$$script" in rules
    for script, verb in (("postinst", "try-restart"), ("prerm", "stop")):
        text = (DEBIAN / f"daemon.{script}").read_text()
        assert f'deb-systemd-invoke {verb} "$unit"' in text and "'@UNITS@'" in text


def test_a_purge_removes_no_wal() -> None:
    script = (DEBIAN / "walkeeper-safekeeper.postrm").read_text()
    assert "rmdir /var/lib/walkeeper" in script and "rm -r" not in script


def test_every_command_has_a_man_page_with_its_options(tmp_path: Path) -> None:
    man = program(DEBIAN / "man.py")
    man.write(click.Context(cli, info_name="walkeeper"), tmp_path)
    names = {path.stem for path in tmp_path.glob("*.1")}
    commands = cli.list_commands(click.Context(cli))
    assert names >= {"walkeeper", *(f"walkeeper-{name}" for name in commands)}
    for command in DAEMONS.values():
        text = (tmp_path / f"walkeeper-{command}.1").read_text()
        shown = {option.replace("-", r"\-") for option in options_of(command)}
        assert not [option for option in shown if option not in text]


def test_mandoc_finds_no_fault_in_the_form_of_a_man_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`mandoc -Tlint` named a missing date, an empty paragraph and lines that are too long."""
    man = program(DEBIAN / "man.py")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    man.write(click.Context(cli, info_name="walkeeper"), tmp_path)
    for path in tmp_path.glob("*.1"):
        text = path.read_text()
        assert '" 1 "1970-01-02" "' in text.splitlines()[0]
        assert not re.search(r"^\.SH .*\n\.PP", text, re.M), path.name
        lines = re.sub(r"^\.nf$.*?^\.fi$", "", text, flags=re.M | re.S).splitlines()
        filled = [line for line in lines[3:] if not line.startswith((".", r"\fB"))]
        assert not [each for each in filled if len(each.encode()) > 80 and " " in each], path.name


def test_text_of_a_man_page_is_no_request_of_groff() -> None:
    man = program(DEBIAN / "man.py")
    assert man.escaped(".so /etc/passwd") == r"\&.so /etc/passwd"
    assert man.filled("x " * 36 + ".TP").splitlines()[-1] == r"\&.TP"
    assert man.escaped("'quoted' C:\\") == r"\&'quoted' C:\e"


def test_a_file_with_another_sum_or_none_is_named() -> None:
    """`make reproducible` compares the sums of two builds."""
    deb = program(ROOT / ".ci" / "deb.py")
    one = "aa  walkeeper.deb\nbb  sbom.json\n"
    assert deb.differing(one, one) == []
    assert deb.differing(one, "aa  walkeeper.deb\ncc  sbom.json\n") == ["sbom.json"]
    assert deb.differing(one, "bb  sbom.json\n") == ["walkeeper.deb"]


def test_the_version_of_the_packages_is_that_of_the_project(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deb = program(ROOT / ".ci" / "deb.py")
    monkeypatch.setattr(deb, "run", lambda *command: "86400\n")
    text = deb.changelog(deb.SUITES[0], "HEAD", "7.5-1~deb12u1")
    assert text.startswith("walkeeper (7.5-1~deb12u1) bookworm; urgency=medium\n")
    assert "Fri, 02 Jan 1970" in text
    pinned = [tool for tool in deb.TOOLS if "==" in tool]
    locked = (ROOT / "constraints.txt").read_text()
    assert not [tool for tool in pinned if f"\n{tool.split('==')[0]}==" in locked]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert deb.EXTRA in extras["optional-dependencies"]
