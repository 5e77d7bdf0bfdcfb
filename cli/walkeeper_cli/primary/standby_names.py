"""What synchronous_standby_names says, and how to say it. Pure.

Grammar: PostgreSQL's syncrep_scanner.l and syncrep_gram.y; names are compared without regard to
case (pg_strcasecmp) and need double quotes unless they look like identifiers.
"""

from __future__ import annotations

import re

PARAMETER = "synchronous_standby_names"
# Where `attach --replace` keeps what it replaced: a parameter of our own, on the primary itself.
REPLACED = "walkeeper.replaced_synchronous_standby_names"
DEFAULT_NAME = "walkeeper"

_IDENTIFIER = re.compile(r"[A-Za-z_\u0080-\U0010ffff][A-Za-z_0-9$\u0080-\U0010ffff]*")
_TOKEN = re.compile(rf'"(?:[^"]|"")*"|{_IDENTIFIER.pattern}|\*|\d+')
_LIST = re.compile(r"\s*(?:(?:ANY|FIRST)\s+)?(\d+)\s*\((.*)\)\s*", re.IGNORECASE | re.DOTALL)
_KEYWORDS = ("any", "first")


def is_proposers(name: str) -> bool:
    """Whether a proposer is called so unless it was told otherwise."""
    folded = name.lower()
    return folded == DEFAULT_NAME or folded.startswith(f"{DEFAULT_NAME}_")


def listed_names(setting: str) -> tuple[str, ...]:
    """The standbys in a value that PostgreSQL has accepted, without quotes, as written."""
    counted = _LIST.fullmatch(setting)
    tokens = _TOKEN.findall(counted.group(2) if counted else setting)
    return tuple(t[1:-1].replace('""', '"') if t.startswith('"') else t for t in tokens)


def includes(setting: str, name: str) -> bool:
    """Whether a standby of this name is among those that may acknowledge a commit."""
    return name.lower() in (listed.lower() for listed in listed_names(setting))


def requires(setting: str, name: str) -> bool:
    """Whether no commit is acknowledged without this standby, while names are not used twice.

    FIRST and ANY are alike here: a listed standby that is away is replaced by the next one, so
    nobody is required unless all of them are. A * is any number of standbys.
    """
    wanted, listed = _counted(setting)
    return name.lower() in listed and "*" not in listed and wanted == len(listed)


def exceeds_its_names(setting: str) -> bool:
    """Whether no commit is acknowledged at all, while names are not used twice."""
    wanted, listed = _counted(setting)
    return bool(listed) and "*" not in listed and wanted > len(listed)


def _counted(setting: str) -> tuple[int, set[str]]:
    """How many have to acknowledge, and the names in small letters: one listed twice is one."""
    counted = _LIST.fullmatch(setting)
    listed = {each.lower() for each in listed_names(setting)}
    return int(counted.group(1)) if counted else 1, listed


def quoted_name(name: str) -> str:
    """In double quotes if it needs them."""
    if _IDENTIFIER.fullmatch(name) and name.lower() not in _KEYWORDS:
        return name
    return '"' + name.replace('"', '""') + '"'


def setting_for(*names: str) -> str:
    """The value that makes every commit wait for all of these proposers."""
    return f"FIRST {len(names)} ({', '.join(quoted_name(name) for name in names)})"


def without(setting: str, name: str) -> str:
    """The value for those that a value lists besides; "" if there are none.

    As many of these as before, or all that are left: who was required stays so.
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
    """Whom commits wait for, in words."""
    wanted, listed = _counted(setting)
    names = ", ".join(listed_names(setting))
    return names if wanted == len(listed) else f"{wanted} of {names}"


def string_literal(text: str) -> str:
    """For SQL and for postgresql.conf alike."""
    return "'" + text.replace("'", "''") + "'"


def configuration_line(setting: str) -> str:
    """As it stands in postgresql.conf."""
    return f"{PARAMETER} = {string_literal(setting)}"
