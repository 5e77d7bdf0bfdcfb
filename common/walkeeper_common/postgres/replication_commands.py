"""The language of replication connections, as PostgreSQL's repl_gram.y has it. Pure.

    parse_command(text) -> Command

A text that does not begin with a command's word is an SqlCommand. The one exception is BEGIN_COPY,
whose words have to be these. A text that begins with a command's word, and goes on
wrongly, is SqlRefused 42601. Words are in any case, and names are quoted or bare (bare ones are
down-cased). A trailing `;` and any spaces are allowed. CREATE_REPLICATION_SLOT's options have two
spellings: bare words up to PostgreSQL 14, a list in parentheses since 15. Commands that only a
primary can run are recognised, so that they can be refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.pgwire import SqlRefused

TIMELINE_MAX = 2**32 - 1
BEGIN_COPY = "BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ"
# Possessive and atomic: skipped text is never looked at again, so the time is linear.
NOTHING = re.compile(r"(?:[ \t\r\n\f\v;]++|--[^\n]*+|(?>/\*.*?\*/))*+", re.DOTALL)
TOKEN = re.compile(
    r"""\s*(?:
        (?P<lsn>[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8})(?![0-9A-Fa-f/])
      | (?P<number>[0-9]+)(?![A-Za-z0-9_])
      | (?P<word>[A-Za-z_][A-Za-z0-9_$.]*)
      | (?P<quoted>"(?:[^"]|"")+")
      | (?P<string>'(?:[^']|'')*')
      | (?P<sign>[(),;])
    )""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class IdentifySystem:
    """Ask which cluster, timeline and position this is."""


@dataclass(frozen=True, slots=True)
class Show:
    """Ask for a setting's value."""

    setting: str


@dataclass(frozen=True, slots=True)
class ReadSlot:
    """Ask where a slot is."""

    slot: str


@dataclass(frozen=True, slots=True)
class CreateSlot:
    """Make a physical slot."""

    slot: str
    temporary: bool
    reserve_wal: bool


@dataclass(frozen=True, slots=True)
class CreateLogicalSlot:
    """Make a logical slot; `options` are in the given order, with names in lower case."""

    slot: str
    temporary: bool
    plugin: str
    options: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class AlterSlot:
    """Give a logical slot other `options`."""

    slot: str
    options: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class StartLogical:
    """Stream logically, with the plugin's options."""

    slot: str
    start_lsn: Lsn
    options: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class DropSlot:
    """Drop a slot; `wait` until no client streams from it any more."""

    slot: str
    wait: bool


@dataclass(frozen=True, slots=True)
class StartReplication:
    """Stream physically; no `timeline` means the current one."""

    slot: str | None
    start_lsn: Lsn
    timeline: int | None


@dataclass(frozen=True, slots=True)
class TimelineHistory:
    """Ask for the timeline's .history file."""

    timeline: int


@dataclass(frozen=True, slots=True)
class PrimaryOnly:
    """`what` needs the data directory or the catalogs, which no safekeeper has."""

    what: str


@dataclass(frozen=True, slots=True)
class BeginCopy:
    """Begin the transaction of a worker that copies a subscription's table (tablesync.c)."""


@dataclass(frozen=True, slots=True)
class SqlCommand:
    """Any other text."""

    text: str


Command: TypeAlias = (
    IdentifySystem
    | Show
    | ReadSlot
    | CreateSlot
    | CreateLogicalSlot
    | AlterSlot
    | DropSlot
    | StartReplication
    | StartLogical
    | TimelineHistory
    | PrimaryOnly
    | BeginCopy
    | SqlCommand
)


def parse_command(text: str) -> Command:
    """Parse one simple-query string; raise SqlRefused 42601 and no other error."""
    first = re.match(r"\s*([A-Za-z_]+)", text)
    parse = COMMANDS.get(first[1].upper()) if first else None
    if parse is None:
        is_begin = text.rstrip("; \n").upper().split() == BEGIN_COPY.split()
        return BeginCopy() if is_begin else SqlCommand(text.strip())
    words = _Words(text)
    words.take("word")
    command = parse(words)
    words.end()
    return command


def is_empty(text: str) -> bool:
    """Return True for spaces, semicolons and comments alone: an EmptyQueryResponse, no error."""
    return NOTHING.fullmatch(text) is not None


class _Words:
    """The tokens of one command, taken from the left."""

    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, str]] = []
        at, text = 0, text.rstrip()
        while at < len(text):
            found = TOKEN.match(text, at)
            if found is None or found.lastgroup is None:
                raise _syntax_error(text[at:].lstrip())
            self.tokens.append((found.lastgroup, found[found.lastgroup]))
            at = found.end()
        while self.tokens and self.tokens[-1] == ("sign", ";"):
            self.tokens.pop()

    def take(self, *kinds: str) -> str:
        """Take the next token, which must be of one of these kinds."""
        if not self.tokens or self.tokens[0][0] not in kinds:
            raise _syntax_error(self.rest())
        return self.tokens.pop(0)[1]

    def accept(self, word: str) -> bool:
        """Take `word`, in any case, if it comes next; return True if it did."""
        if self.tokens and self.tokens[0][0] in ("word", "sign"):
            if self.tokens[0][1].upper() != word:
                return False
            self.tokens.pop(0)
            return True
        return False

    def name(self) -> str:
        """Take an identifier: bare and down-cased, or quoted and as it is."""
        token = self.take("word", "quoted")
        return token[1:-1].replace('""', '"') if token.startswith('"') else token.lower()

    def timeline(self) -> int:
        """Take a timeline id; there is no timeline 0."""
        number = int(self.take("number")[:12])
        if not 1 <= number <= TIMELINE_MAX:
            raise SqlRefused("42601", f"invalid timeline {number}")
        return number

    def rest(self) -> str:
        """Return the tokens that were not taken, for messages."""
        return " ".join(token for _, token in self.tokens)

    def end(self) -> None:
        """Refuse tokens that are left."""
        if self.tokens:
            raise _syntax_error(self.rest())


def _syntax_error(near: str) -> SqlRefused:
    where = f'at or near "{near[:60]}"' if near else "at end of input"
    return SqlRefused("42601", f"syntax error {where}")


def _show(words: _Words) -> Command:
    return Show(words.name())


def _create_slot(words: _Words) -> Command:
    slot = words.name()
    temporary = words.accept("TEMPORARY")
    if words.accept("LOGICAL"):
        return CreateLogicalSlot(slot, temporary, words.name(), _bare_or_listed(words))
    if not words.accept("PHYSICAL"):
        raise _syntax_error(words.rest())
    reserve = words.accept("RESERVE_WAL") or (words.accept("(") and _slot_options(words))
    return CreateSlot(slot, temporary, reserve)


BARE_OPTIONS = {  # PostgreSQL 14 and older
    "EXPORT_SNAPSHOT": ("snapshot", "export"),
    "NOEXPORT_SNAPSHOT": ("snapshot", "nothing"),
    "USE_SNAPSHOT": ("snapshot", "use"),
    "TWO_PHASE": ("two_phase", "true"),
}


def _bare_or_listed(words: _Words) -> tuple[tuple[str, str], ...]:
    if words.accept("("):
        return _options(words)
    found = []
    while words.tokens:
        word = words.take("word").upper()
        if word not in BARE_OPTIONS:
            raise _syntax_error(word)
        found.append(BARE_OPTIONS[word])
    return tuple(found)


def _options(words: _Words) -> tuple[tuple[str, str], ...]:
    """Take the list after `(`, up to and with `)`; an option without a value is `true`."""
    found = []
    while True:
        name, value = words.name().lower(), "true"
        if words.tokens and words.tokens[0][0] in ("word", "string", "number"):
            value = words.take("word", "string", "number")
            if value.startswith("'"):
                value = value[1:-1].replace("''", "'")
        found.append((name, value))
        if words.accept(")"):
            return tuple(found)
        if not words.accept(","):
            raise _syntax_error(words.rest())


def _slot_options(words: _Words) -> bool:
    """Take the list after `(`, up to and with `)`; return True if RESERVE_WAL is on."""
    reserve = False
    while True:
        option = words.name()
        if option != "reserve_wal":
            raise SqlRefused("42601", f"unrecognized option: {option}")
        reserve = True
        if words.tokens and words.tokens[0][0] in ("word", "string", "number"):
            value = words.take("word", "string", "number").strip("'").lower()
            reserve = parse_boolean(value, f'"{option}" requires a Boolean value')
        if words.accept(")"):
            return reserve
        if not words.accept(","):
            raise _syntax_error(words.rest())


def parse_boolean(text: str, complaint: str) -> bool:
    """Parse as PostgreSQL's parse_bool does, or raise SqlRefused 22023 with the complaint.

    It takes unique prefixes of true, false, yes and no, and also on, off, 1 and 0.
    """
    value = text.strip().lower()
    if value and ("true".startswith(value) or "yes".startswith(value) or value in ("on", "1")):
        return True
    falses = ("false".startswith(value), "no".startswith(value), value in ("of", "off", "0"))
    if value and any(falses):
        return False
    raise SqlRefused("22023", complaint)


def _alter_slot(words: _Words) -> Command:
    slot = words.name()
    if not words.accept("("):
        raise _syntax_error(words.rest())
    return AlterSlot(slot, _options(words))


def _drop_slot(words: _Words) -> Command:
    return DropSlot(words.name(), words.accept("WAIT"))


def _start_replication(words: _Words) -> Command:
    slot = words.name() if words.accept("SLOT") else None
    if words.accept("LOGICAL"):
        if slot is None:
            raise _syntax_error("LOGICAL")
        lsn = Lsn.parse(words.take("lsn"))
        return StartLogical(slot, lsn, _options(words) if words.accept("(") else ())
    words.accept("PHYSICAL")
    start_lsn = Lsn.parse(words.take("lsn"))
    timeline = words.timeline() if words.accept("TIMELINE") else None
    return StartReplication(slot, start_lsn, timeline)


def _primary_only(what: str) -> Callable[[_Words], Command]:
    def parse(words: _Words) -> Command:
        words.tokens.clear()
        return PrimaryOnly(what)

    return parse


COMMANDS: dict[str, Callable[[_Words], Command]] = {
    "IDENTIFY_SYSTEM": lambda words: IdentifySystem(),
    "SHOW": _show,
    "READ_REPLICATION_SLOT": lambda words: ReadSlot(words.name()),
    "CREATE_REPLICATION_SLOT": _create_slot,
    "ALTER_REPLICATION_SLOT": _alter_slot,
    "DROP_REPLICATION_SLOT": _drop_slot,
    "START_REPLICATION": _start_replication,
    "TIMELINE_HISTORY": lambda words: TimelineHistory(words.timeline()),
    "BASE_BACKUP": _primary_only("BASE_BACKUP"),
    "UPLOAD_MANIFEST": _primary_only("UPLOAD_MANIFEST"),
}
