"""The TLS file of this process, fixed once at its start: its identity towards all peers.

`--tls` sets it. ssl and logging are imported only if there is one: `restore` starts for each
segment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from walkeeper_common.shell.tls.credentials import Credentials

_process: list[Credentials] = []


def use_credentials(path: str | None) -> None:
    """Use this TLS file from now on, or none; raise Refused if it cannot be used."""
    if path is None and not _process:
        return
    from walkeeper_common.shell.files.reloaded_file import unwatch, watch

    for former in _process:
        unwatch(former.file)
    _process.clear()
    if path is not None:
        from walkeeper_common.shell.tls.credentials import Credentials

        credentials = Credentials(path)
        watch(credentials.file)
        _process.append(credentials)


def own_credentials() -> Credentials | None:
    """Return the credentials of this process, or None if it speaks without TLS."""
    return _process[0] if _process else None


def own_options() -> list[str]:
    """Return the options that give this process's file to another command of walkeeper."""
    credentials = own_credentials()
    return [] if credentials is None else ["--tls", credentials.path]


def own_libpq_parameters() -> dict[str, str]:
    """Return libpq's parameters for a safekeeper, or an empty dictionary if there is no file.

    libpq reads the file again for each connection. It cannot tell a safekeeper's certificate from
    another one, so the host's name decides: files of other roles name none.
    """
    credentials = own_credentials()
    if credentials is None:
        return {}
    names = ["sslcert", "sslkey", "sslrootcert"]
    if credentials.has_list_of_each_authority():
        names.append("sslcrl")
    return {"sslmode": "verify-full", **dict.fromkeys(names, credentials.path)}
