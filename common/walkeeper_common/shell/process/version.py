"""The version of the program that runs: pyproject.toml has the only text of it.

Every other place asks the installed distribution: `walkeeper --version`, a safekeeper's part of
`walkeeper status --json`, and /status of a daemon's --http.
"""

from __future__ import annotations

from functools import cache

UNKNOWN = "unknown"


@cache
def program_version() -> str:
    """Return the version of the installed walkeeper, or "unknown" in a tree without installation.

    The first call reads the distribution's metadata (milliseconds); later ones cost nothing.
    """
    # Not above: each command of the shell would wait for the parsers of mail headers.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("walkeeper")
    except PackageNotFoundError:
        return UNKNOWN
