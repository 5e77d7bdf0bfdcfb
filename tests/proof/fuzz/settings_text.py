"""Text that people write: the configuration file, options, synchronous_standby_names.

Promises: only click.UsageError (BadParameter is one) is raised, with one line for the operator. A
name comes back out of the setting that was made of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

import click

from tests.proof.fuzz.contract import Target, require
from walkeeper_admin.primary.standby_names import (
    configuration_line,
    includes,
    is_proposers,
    listed_names,
    requires,
    setting_for,
)
from walkeeper_cli import options
from walkeeper_cli.configuration_file import load_defaults
from walkeeper_cli.program import cli
from walkeeper_common.lsn import Lsn, parse_segment_name, segment_name

COMMANDS = ("proposer", "safekeeper", "create", "status", "settle")
OPTIONS = (
    options.Size(),
    options.Duration(),
    options.HostPort(port_min=0),
    options.HostPorts(),
    options.ApplicationName(),
    options.SlotName(),
)
_FILE = os.memfd_create("walkeeper.toml")
_PATH = f"/proc/self/fd/{_FILE}"
_CONTEXT = click.Context(cli)


def run_file(data: bytes) -> None:
    """Take the whole path of `--config`: the file's values, and what the options make of them."""
    os.ftruncate(_FILE, 0)
    os.pwrite(_FILE, data, 0)
    for name in COMMANDS:
        command = cli.get_command(_CONTEXT, name)
        assert command is not None, f"{name=}"
        try:
            defaults = load_defaults(_PATH, command, None, cli)
        except click.UsageError as error:
            require(_PATH in error.format_message(), "{} names no file", error)
            continue
        context = click.Context(command, info_name=name)
        for parameter in command.params:
            if parameter.name in defaults:
                with suppress(click.UsageError):
                    parameter.type_cast_value(context, defaults[parameter.name])


def run_settings(data: bytes) -> None:
    """Parse the rest as the kind that the first byte says."""
    text = data[1:].decode("utf-8", "replace")
    kind = data[0] % 10 if data else 0
    if kind < len(OPTIONS):
        with suppress(click.UsageError):
            OPTIONS[kind].convert(text, None, None)
    elif kind == 6:
        listed_names(text)
        require(includes(text, "wal") or not requires(text, "wal"), "{!r}", text)
        is_proposers(text)
        configuration_line(text)
    elif kind == 7:
        require(listed_names(setting_for(text)) == (text,), "{!r}", setting_for(text))
        require(includes(setting_for(text), text), "{!r}", setting_for(text))
        require(requires(setting_for(text), text) or text == "*", "{!r}", setting_for(text))
    elif kind == 8:
        with suppress(ValueError):
            lsn = Lsn.parse(text)
            require(Lsn.parse(str(lsn)) == lsn and lsn < 2**64, "{!r}", text)
    else:
        _check_segment_name(text)


def _check_segment_name(text: str) -> None:
    for size in (1 << 20, 1 << 24, 1 << 30):
        try:
            timeline, lsn = parse_segment_name(text, size)
        except ValueError:
            continue
        require(segment_name(timeline, lsn, size) == text, "{!r} size={}", text, size)


def _file_seeds() -> Iterable[bytes]:
    yield (
        b'safekeepers = ["10.0.0.1:5454", "[::1]:5454"]\n[proposer]\ndsn = "service=prod"\n'
        b"take-over = true\n"
    )
    yield b'[safekeeper]\nid = 1\ndata_dir = "/x"\nlisten = "127.0.0.1:0"\nwal-keep-size = "1GB"\n'
    yield b"[status]\nwatch = 1.5\n[settle]\nseal = true\n[create]\nack-quorum = 2\n"
    yield b"[[proposer]]\nx = {a = 1979-05-27T07:32:00Z, b = [1, 2.5, inf, 0x1F]}\n"


SETTINGS = Target(
    name="settings",
    about="sizes, durations, addresses, names, LSNs, synchronous_standby_names",
    run=run_settings,
    seeds=lambda: [
        b"\x0016MB", b"\x01500ms", b"\x02[::1]:5454", b"\x03a:1,b:2", b"\x04walkeeper", b"\x05slot",
        b'\x06FIRST 1 (walkeeper, "a""b", *)', b'\x07a"b', b"\x080/16B3748",
        b"\x09000000010000000000000003", b"\x06ANY 2 (a,b)",
    ],
    bytes_max=300,
)  # fmt: skip
FILE = Target(
    name="configuration_file",
    about="the TOML file of --config",
    run=run_file,
    seeds=_file_seeds,
    bytes_max=8192,
)
