"""walkeeper's own daemons as children of a command. A shell.

DIR/safekeeperN         a data directory
DIR/logs/NAME.log       the log of each daemon; the caller has made `logs`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from walkeeper_common.addresses import Address, shown_address
from walkeeper_lab.local.child_process import ChildProcess, walkeeper_command
from walkeeper_lab.local.local_tls import LocalTls


def safekeepers(
    directory: Path,
    addresses: Sequence[Address],
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    tls: LocalTls | None = None,
) -> dict[int, ChildProcess]:
    """Return a safekeeper for each address, by number from 1 on, all with the same `options`.

    None of them is started. With `tls`, each has a file of its own.
    """
    return {
        number: _daemon(
            directory,
            f"safekeeper {number}",
            *("safekeeper", "--id", str(number), "--listen", shown_address(address)),
            *("--data-dir", str(data_directory(directory, number)), *options),
            *(tls.of_safekeeper(number) if tls is not None else ()),
            **(environment or {}),
        )
        for number, address in enumerate(addresses, 1)
    }


def data_directory(directory: Path, number: int) -> Path:
    """Return the data directory of a safekeeper."""
    return directory / f"safekeeper{number}"


def proposer(
    directory: Path,
    addresses: Sequence[Address],
    dsn: str,
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> ChildProcess:
    """Return a proposer that is not started.

    Its environment holds the DSN. A DSN may hold a password, and every user can read a command
    line.
    """
    members = ",".join(map(shown_address, addresses))
    arguments = ("proposer", "--safekeepers", members, *options)
    its = environment or {}
    if not dsn:  # in the environment, an empty value counts as no value
        return _daemon(directory, "proposer", *arguments, "--dsn", "", **its)
    return _daemon(directory, "proposer", *arguments, **its, WALKEEPER_DSN=dsn)


def _daemon(directory: Path, name: str, *arguments: str, **environment: str) -> ChildProcess:
    log = directory / "logs" / f"{name.replace(' ', '')}.log"
    return ChildProcess(name, walkeeper_command(*arguments), log, environment=environment)
