"""The locks of this process's --http, fixed once at its start: its tokens, and TLS. A shell."""

from __future__ import annotations

from walkeeper_common.access.http_access import TOKEN_LENGTH_MAX, TOKENS_MAX, parse_tokens
from walkeeper_common.errors import Refused
from walkeeper_common.shell.files.reloaded_file import ReloadedFile, unwatch, watch

HTTP_LOCK = "--http-token FILE"  # for the message that refuses an open port
BYTES_MAX = TOKENS_MAX * (TOKEN_LENGTH_MAX + 2)
_process: list[ReloadedFile[tuple[str, ...]]] = []
_https: list[bool] = []


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


def use_https(*, is_on: bool) -> None:
    """Set whether --http speaks TLS, with the file of --tls."""
    _https[:] = [True] * is_on


def speaks_https() -> bool:
    """Return whether --http speaks TLS, and takes certificates of monitors."""
    return bool(_https)


def is_locked() -> bool:
    """Return whether a client of --http has to prove who it is."""
    return speaks_https() or bool(http_tokens())


def _load(path: str) -> tuple[str, ...]:
    try:
        with open(path, "rb") as file:
            return parse_tokens(file.read(BYTES_MAX).decode())
    except OSError as error:
        raise Refused(f"cannot read the token file {path}: {error.strerror}") from error
    except (UnicodeDecodeError, Refused) as error:
        raise Refused(f"the token file {path} is not usable: {error}") from error
