"""The token file of this process's --http, fixed once at its start by --http-token. A shell."""

from __future__ import annotations

from walkeeper_common.errors import Refused
from walkeeper_common.http_access import TOKEN_LENGTH_MAX, TOKENS_MAX, parse_tokens
from walkeeper_common.shell.reloaded_file import ReloadedFile, unwatch, watch

BYTES_MAX = TOKENS_MAX * (TOKEN_LENGTH_MAX + 2)
_process: list[ReloadedFile[tuple[str, ...]]] = []


def use_http_token(path: str | None) -> None:
    """Use this file from now on, or none; raise Refused if it cannot be used."""
    for former in _process:
        unwatch(former)
    _process.clear()
    if path is not None:
        file = ReloadedFile(path, _load, what="token file", option="--http-token", secret="token")
        _process.append(watch(file))


def http_tokens() -> tuple[str, ...]:
    """Return the tokens that a client of --http may prove now, or none if it needs no token."""
    return _process[0].current() if _process else ()


def _load(path: str) -> tuple[str, ...]:
    try:
        with open(path, "rb") as file:
            return parse_tokens(file.read(BYTES_MAX).decode())
    except OSError as error:
        raise Refused(f"cannot read the token file {path}: {error.strerror}") from error
    except (UnicodeDecodeError, Refused) as error:
        raise Refused(f"the token file {path} is not usable: {error}") from error
