"""The meaning of synchronous_standby_names, and its values for proposers. Pure.

The grammar is PostgreSQL's (syncrep_scanner.l and syncrep_gram.y). The case of a name does not
matter (pg_strcasecmp). A name needs double quotes unless it looks like an identifier.
"""

from __future__ import annotations

import re

PARAMETER = "synchronous_standby_names"
# The custom parameter, on the primary itself, in which `attach --replace` keeps the old setting.
REPLACED = "walkeeper.replaced_synchronous_standby_names"
DEFAULT_NAME = "walkeeper"

_IDENTIFIER = re.compile(r"[A-Za-z_\u0080-\U0010ffff][A-Za-z_0-9$\u0080-\U0010ffff]*")
_TOKEN = re.compile(rf'"(?:[^"]|"")*"|{_IDENTIFIER.pattern}|\*|\d+')
_LIST = re.compile(r"\s*(?:(?:ANY|FIRST)\s+)?(\d+)\s*\((.*)\)\s*", re.IGNORECASE | re.DOTALL)
_KEYWORDS = ("any", "first")


def is_proposers(name: str) -> bool:
    """Return True if this may be the default name of a proposer."""
    folded = name.lower()
    return folded == DEFAULT_NAME or folded.startswith(f"{DEFAULT_NAME}_")


def listed_names(setting: str) -> tuple[str, ...]:
    """Return the names in a value that PostgreSQL has accepted, as written but without quotes."""
    counted = _LIST.fullmatch(setting)
    tokens = _TOKEN.findall(counted.group(2) if counted else setting)
    return tuple(t[1:-1].replace('""', '"') if t.startswith('"') else t for t in tokens)


def includes(setting: str, name: str) -> bool:
    """Return True if a standby of this name may acknowledge a commit."""
    return name.lower() in (listed.lower() for listed in listed_names(setting))


def requires(setting: str, name: str) -> bool:
    """Return True if no commit returns without this standby, while no two standbys share a name.

    FIRST and ANY are alike here. The next listed standby replaces one that is away, so that either
    all of them are required or none. A * stands for any number of standbys.
    """
    wanted, listed = _counted(setting)
    return name.lower() in listed and "*" not in listed and wanted == len(listed)


def exceeds_its_names(setting: str) -> bool:
    """Return True if no commit returns at all, while no two standbys share a name."""
    wanted, listed = _counted(setting)
    return bool(listed) and "*" not in listed and wanted > len(listed)


def _counted(setting: str) -> tuple[int, set[str]]:
    """Return how many standbys have to acknowledge, and the set of names in small letters.

    A name that is listed twice counts once.
    """
    counted = _LIST.fullmatch(setting)
    listed = {each.lower() for each in listed_names(setting)}
    return int(counted.group(1)) if counted else 1, listed


def quoted_name(name: str) -> str:
    """Return the name, in double quotes if it needs them."""
    if _IDENTIFIER.fullmatch(name) and name.lower() not in _KEYWORDS:
        return name
    return '"' + name.replace('"', '""') + '"'


def setting_for(*names: str) -> str:
    """Return the value that makes every commit wait for all of these proposers."""
    return f"FIRST {len(names)} ({', '.join(quoted_name(name) for name in names)})"


def without(setting: str, name: str) -> str:
    """Return the setting without this name, or "" if no other name is left.

    The new value requires as many standbys as before, or all that are left. So a standby that was
    required stays so.
    """
    others = [listed for listed in listed_names(setting) if listed.lower() != name.lower()]
    if not others:
        return ""
    wanted, _ = _counted(setting)
    wanted = min(wanted, len({other.lower() for other in others}))
    is_any = _LIST.fullmatch(setting) and setting.lstrip().lower().startswith("any")
    quoted = ", ".join(quoted_name(other) for other in others)
    return f"{'ANY' if is_any else 'FIRST'} {wanted} ({quoted})"


def described(setting: str) -> str:
    """Return in words which standbys commits wait for."""
    wanted, listed = _counted(setting)
    names = ", ".join(listed_names(setting))
    return names if wanted == len(listed) else f"{wanted} of {names}"


def string_literal(text: str) -> str:
    """Return a string literal that SQL and postgresql.conf both accept."""
    return "'" + text.replace("'", "''") + "'"


def configuration_line(setting: str) -> str:
    """Return the setting as a line of postgresql.conf."""
    return f"{PARAMETER} = {string_literal(setting)}"
