"""Names as regclass and its like print them, and as a server reads them back. Pure.

    namer = Namer(major, has_system=True)
    namer.shown(classes) -> {oid: 'public."T"'}        namer.qualified(classes) -> the same for SQL

Contract: the search path is the default one, `"$user", public`, without a schema of the user's
name. A name is None where the catalogs at hand do not decide it. Source: ruleutils.c, regproc.c,
namespace.c, format_type.c and kwlist.h.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from walkeeper_replay.text.object_names import Shown
from walkeeper_replay.text.value_text import Type


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")
# The words that quote_identifier quotes: all keywords but the unreserved ones.
_KEYWORDS = _words(
    """all analyse analyze and any array as asc asymmetric authorization between bigint binary bit
    boolean both case cast char character check coalesce collate collation column concurrently
    constraint create cross current_catalog current_date current_role current_schema
    current_time current_timestamp current_user dec decimal default deferrable desc distinct do
    else end except exists extract false fetch float for foreign freeze from full grant greatest
    group grouping having ilike in initially inner inout int integer intersect interval into is
    isnull join lateral leading least left like limit localtime localtimestamp national natural
    nchar none normalize not notnull null nullif numeric offset on only or order out outer
    overlaps overlay placing position precision primary real references returning right row
    select session_user setof similar smallint some substring symmetric table tablesample then
    time timestamp to trailing treat trim true union unique user using values varchar variadic
    verbose when where window with xmlattributes xmlconcat xmlelement xmlexists xmlforest
    xmlnamespaces xmlparse xmlpi xmlroot xmlserialize xmltable"""
)
_KEYWORDS_SINCE = {
    16: _words("json_array json_arrayagg json_object json_objectagg system_user"),
    17: _words(
        """json json_exists json_query json_scalar json_serialize json_table json_value
        merge_action"""
    ),
}
_TYPES = {
    16: "boolean", 114: "json", 20: "bigint", 21: "smallint", 23: "integer", 700: "real",
    701: "double precision", 1042: "character", 1043: "character varying",
    1083: "time without time zone", 1114: "timestamp without time zone",
    1184: "timestamp with time zone", 1186: "interval", 1266: "time with time zone", 1560: "bit",
    1562: "bit varying", 1700: "numeric",
}  # fmt: skip
_NO_ARRAYS = (22, 30)  # int2vector, oidvector
# Encodings that ICU does not have, so that its collations for all encodings do not serve there.
_WITHOUT_ICU = frozenset({0, 5, 7, 13, 15, 17, 21})


Names = dict[int, str | None]


class Owned(NamedTuple):
    """An object of a schema; `arguments` are the types of a function's or an operator's."""

    oid: int
    schema: str
    name: str
    arguments: tuple[int, ...] = ()


class Collation(NamedTuple):
    """A row of pg_collation; `encoding` is -1 if it serves all."""

    oid: int
    schema: str
    name: str
    encoding: int
    provider: str


@dataclass(frozen=True, slots=True)
class Namer:
    """The rules of one major version, over catalogs with or without all that initdb made."""

    major: int
    has_system: bool

    def quoted(self, name: str) -> str:
        """Return a name as quote_identifier does."""
        if _PLAIN.fullmatch(name) and name not in _keywords(self.major):
            return name
        return '"' + name.replace('"', '""') + '"'

    def shown(self, owned: Sequence[Owned], *, are_system_named: bool = False) -> Names:
        """Return names, with a schema where the search path does not find them without.

        With `are_system_named`, all such objects of pg_catalog are at hand or begin with `pg_`.
        """
        system = {(each.name, each.arguments) for each in owned if each.schema == "pg_catalog"}
        found: Names = {}
        for each in owned:
            is_hidden = (each.name, each.arguments) in system
            is_known = self.has_system or (are_system_named and not each.name.startswith("pg_"))
            if not _is_settled(each.schema):
                found[each.oid] = None
            elif each.schema == "pg_catalog" or (each.schema == "public" and not is_hidden):
                is_first = each.schema == "pg_catalog" or is_known
                found[each.oid] = self.quoted(each.name) if is_first else None
            else:
                found[each.oid] = self._in_schema(each.schema, self.quoted(each.name))
        return found

    def qualified(self, owned: Iterable[Owned | Collation]) -> Names:
        """Return names with their schemas."""
        return {
            each.oid: self._in_schema(each.schema, self.quoted(each.name))
            if _is_settled(each.schema) else None
            for each in owned
        }  # fmt: skip

    def _in_schema(self, schema: str, text: str) -> str:
        return f"{self.quoted(schema)}.{text}"

    def unique(self, owned: Sequence[Owned], *, are_operators: bool = False) -> Names:
        """Return what regproc or regoper prints: a schema if the name alone means several."""
        in_path: dict[str, dict[tuple[int, ...], int]] = {}
        for schema in ("pg_catalog", "public"):
            for each in owned:
                if each.schema == schema:
                    in_path.setdefault(each.name, {}).setdefault(each.arguments, each.oid)
        found: Names = {}
        for each in owned:
            is_searched = each.schema in ("pg_catalog", "public")
            name = each.name if are_operators else self.quoted(each.name)
            if not _is_settled(each.schema) or (is_searched and not self.has_system):
                found[each.oid] = None
            elif list(in_path.get(each.name, {}).values()) == [each.oid]:
                found[each.oid] = name
            else:
                found[each.oid] = self._in_schema(each.schema, name)
        return found

    def unique_for_sql(self, owned: Sequence[Owned], *, are_operators: bool = False) -> Names:
        """Return what input takes for one function or operator: the number if a name has more."""
        counts = Counter((each.schema, each.name) for each in owned)
        found: Names = {}
        for each in owned:
            name = each.name if are_operators else self.quoted(each.name)
            is_known = _is_settled(each.schema) and self.has_system
            is_one = counts[each.schema, each.name] == 1
            shown = self._in_schema(each.schema, name) if is_one else str(each.oid)
            found[each.oid] = shown if is_known else None
        return found

    def functions(self, owned: Sequence[Owned], names: Names, types: Shown) -> Names:
        """Return what regprocedure prints, from the functions' own names."""
        return {
            each.oid: _with_arguments(names[each.oid], [types.get(t) for t in each.arguments])
            for each in owned
        }

    def operators(self, owned: Sequence[Owned], types: Shown, *, for_sql: bool) -> Names:
        """Return what regoperator prints. An operator's name needs no quotes."""
        plain = {each.oid: each for each in owned}
        found: Names = {}
        for oid, shown in (self.qualified(owned) if for_sql else self.shown(owned)).items():
            each = plain[oid]
            is_plain = shown is not None and shown == self.quoted(each.name)
            name = each.name if is_plain else self._in_schema(each.schema, each.name)
            sides = [types.get(t) if t else "NONE" for t in each.arguments]
            found[oid] = _with_arguments(None if shown is None else name, sides)
        return found

    def collations(self, owned: Sequence[Collation], encoding: int) -> tuple[Names, Names]:
        """Return what regcollation prints in a database of this encoding, and names for SQL."""
        chosen: dict[tuple[str, str], int] = {}
        for wanted in (encoding, -1):
            for each in owned:
                serves = each.provider != "i" or encoding not in _WITHOUT_ICU
                if each.encoding == wanted and (serves or wanted != -1):
                    chosen.setdefault((each.schema, each.name), each.oid)
        shown, for_sql = self.qualified(owned), self.qualified(owned)
        for each in owned:
            in_path = [chosen.get((schema, each.name)) for schema in ("pg_catalog", "public")]
            if chosen.get((each.schema, each.name)) != each.oid:
                for_sql[each.oid] = str(each.oid) if self.has_system else None
            if not self.has_system and each.schema in ("pg_catalog", "public"):
                shown[each.oid] = for_sql[each.oid] = None
            elif next((oid for oid in in_path if oid is not None), None) == each.oid:
                shown[each.oid] = self.quoted(each.name)
        return shown, for_sql

    def types(self, each: Sequence[Type], names: Names) -> Names:
        """Return what format_type prints, from the types' own names: SQL's words, and arrays."""
        found = names | _TYPES
        for one in each:
            is_array = one.element and one.length == -1 and one.kind in "bp"
            if is_array and one.oid not in _NO_ARRAYS:
                element = found.get(one.element)
                found[one.oid] = None if element is None else element + "[]"
        return found


def _is_settled(schema: str) -> bool:
    """Return False if a schema's row is not known, or sessions see it by several names."""
    return not (schema.isdigit() or schema.startswith("pg_temp"))


def _with_arguments(name: str | None, types: list[str | None]) -> str | None:
    known = [each for each in types if each is not None]
    return None if name is None or len(known) < len(types) else f"{name}({','.join(known)})"


@cache
def _keywords(major: int) -> frozenset[str]:
    return _KEYWORDS.union(*(w for since, w in _KEYWORDS_SINCE.items() if since <= major))
