"""pg_hba.conf narrowed to a few roles: the rules for them stay, and no other role gets in. Pure.

The grammar is PostgreSQL's (hba.c: next_token, next_field_expand). White space parts fields, and
commas part the items of a list. Double quotes, # for comments, and a backslash at a line's end
count as they do there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TypedDict

from walkeeper_common.errors import Refused


class Encoding(TypedDict):
    """The arguments of open and read_text for a file of rules."""

    encoding: str
    errors: str


# PostgreSQL reads bytes: a comment may be in any encoding.
ANY_ENCODING = Encoding(encoding="utf-8", errors="surrogateescape")
TYPES = frozenset(("local", "host", "hostssl", "hostnossl", "hostgssenc", "hostnogssenc"))
INCLUDES = frozenset(("include", "include_if_exists", "include_dir"))
MARK = "# walkeeper gate: closed to all roles but "  # the first bytes of closed rules
HEAD = (
    f"{MARK}{{roles}} until a quorum has all WAL of this server.\n"
    "# The rules of the open server are in {kept}. walkeeper gate puts them back.\n"
)

_COMMENT = re.compile(r'((?:[^"#]|"[^"]*")*)(?:#.*)?')
_FIELD = re.compile(r'\s*((?:"[^"]*"|[^\s,"])+(?:\s*,\s*(?:"[^"]*"|[^\s,"])+)*)')
_MASK = re.compile(r"[0-9.]+|[0-9A-Fa-f]*:[0-9A-Fa-f:.]*")
_ITEM = re.compile(r'(?:"[^"]*"|[^\s,"])+')


def narrowed(text: str, roles: Sequence[str], *, kept: str) -> str:
    """Return the rules of a pg_hba.conf for these roles alone, in their order.

    A rule for `all` becomes one for the roles. A rule for a group or a regular expression is left
    out, because only the server knows who is meant. It stays if it rejects: it admits no role, and
    keeps some from a later rule. `kept` names the file with all rules. Raise Refused, with the
    line, for a file that includes others or that has no rule for a role.
    """
    rules = [rule for line in _lines(text) if (rule := _rule_for(line, roles)) is not None]
    if not rules:
        raise Refused(
            f"pg_hba.conf has no rule for {', '.join(roles)}: name roles of your rules with --admit"
        )
    head = HEAD.format(roles=", ".join(roles), kept=kept)
    return head + "".join(f"{rule}\n" for rule in rules)


def _lines(text: str) -> Iterator[str]:
    """Yield the lines without comments. A line that ends with a backslash includes the next one."""
    for line in re.sub(r"\\\r?\n", "", text).splitlines():
        found = _COMMENT.match(line)
        bare = found[1].strip() if found else ""
        if bare:
            yield bare


def _rule_for(line: str, roles: Sequence[str]) -> str | None:
    kind = _FIELD.match(line)
    word = kind[1] if kind else ""
    if word in INCLUDES or "@" in line.replace('"@', ""):
        raise Refused(
            "pg_hba.conf includes another file, which the gate cannot narrow; put its content in "
            f"the place of this line: {line}"
        )
    database = _FIELD.match(line, kind.end()) if kind else None
    users = _FIELD.match(line, database.end()) if database else None
    if word not in TYPES or users is None:
        raise Refused(f"pg_hba.conf has a line that is no rule, correct it: {line}")
    listed = _ITEM.findall(users[1])
    is_open_set = any(item.startswith(("+", "/", '"/')) for item in listed)
    if is_open_set and _rejects(word, line[users.end(1) :]):
        return line
    if "all" in listed:
        admitted = list(roles)
    else:
        admitted = [role for role in roles if role in (item.strip('"') for item in listed)]
    if not admitted:
        return None
    names = ",".join(f'"{role}"' for role in admitted)
    return f"{line[: users.start(1)]}{names}{line[users.end(1) :]}"


def _rejects(kind: str, rest: str) -> bool:
    """Return True if the method of a rule is `reject`; `rest` is the line after the users."""
    fields = [found[1] for found in _FIELD.finditer(rest)]
    if kind != "local":  # an address, and perhaps its mask
        has_mask = len(fields) > 1 and "/" not in fields[0] and _MASK.fullmatch(fields[1])
        del fields[: 2 if has_mask else 1]
    return fields[:1] == ["reject"]
