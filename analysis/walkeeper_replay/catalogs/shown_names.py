"""Names as regclass and its like print them. Pure.

    shown_names(classes, types, schemas, major, roles) -> {2205: {oid: 'public."T"'}, 2206: …}
    names_in_path(configurations, major, has_system=True)    -> {oid: 'english'}

Contract: the search path is the default one, `"$user", public`, without a schema of the user's
name. A name is left out where the catalogs at hand do not decide it. Source: ruleutils.c,
regproc.c, format_type.c and kwlist.h.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from walkeeper_replay.text.value_text import REGCLASS, REGNAMESPACE, REGROLE, REGTYPE, Types


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
    16: "boolean", 20: "bigint", 21: "smallint", 23: "integer", 700: "real",
    701: "double precision", 1042: "character", 1043: "character varying",
    1083: "time without time zone", 1114: "timestamp without time zone",
    1184: "timestamp with time zone", 1186: "interval", 1266: "time with time zone", 1560: "bit",
    1562: "bit varying", 1700: "numeric",
}  # fmt: skip
_NO_ARRAYS = (22, 30)  # int2vector, oidvector


class Owned(NamedTuple):
    oid: int
    schema: str
    name: str


def shown_names(
    classes: Iterable[Owned],
    types: Types,
    schemas: Mapping[int, str],
    major: int,
    roles: Mapping[int, str],
) -> dict[int, dict[int, str]]:
    """Return names by the type that prints them, and by OID."""
    keywords = _keywords(major)
    owned = [Owned(t.oid, t.schema, t.name) for t in types.by_oid.values()]
    of_types = _visible(owned, keywords) | _TYPES
    for oid, each in types.by_oid.items():
        is_array = each.element and each.length == -1 and each.kind == "b"
        if is_array and oid not in _NO_ARRAYS:
            of_types.pop(oid, None)
            if each.element in of_types:
                of_types[oid] = of_types[each.element] + "[]"
    return {
        REGCLASS: _visible(list(classes), keywords),
        REGTYPE: of_types,
        REGROLE: {oid: _quoted(name, keywords) for oid, name in roles.items()},
        REGNAMESPACE: {oid: _quoted(name, keywords) for oid, name in schemas.items()},
    }


def names_in_path(owned: list[Owned], major: int, *, has_system: bool) -> dict[int, str]:
    """Return names by OID, as regconfig and regdictionary print them.

    Without all names of pg_catalog, it is not known which names of `public` they hide.
    """
    found = _visible(owned, _keywords(major))
    hidden = set() if has_system else {each.oid for each in owned if each.schema == "public"}
    return {oid: name for oid, name in found.items() if oid not in hidden}


def _keywords(major: int) -> frozenset[str]:
    return _KEYWORDS.union(*(w for since, w in _KEYWORDS_SINCE.items() if since <= major))


def _visible(owned: list[Owned], keywords: frozenset[str]) -> dict[int, str]:
    """Return names, with a schema where the search path does not find them without."""
    system = {each.name for each in owned if each.schema == "pg_catalog"}
    found: dict[int, str] = {}
    for oid, schema, name in owned:
        # The schema's row is not known, or what it shows differs from session to session.
        if schema.isdigit() or schema.startswith("pg_temp"):
            continue
        shown = _quoted(name, keywords)
        if schema == "public" and name not in system and name.startswith("pg_"):
            continue  # it is not known if pg_catalog has such a name
        if schema != "pg_catalog" and (schema != "public" or name in system):
            shown = f"{_quoted(schema, keywords)}.{shown}"
        found[oid] = shown
    return found


def _quoted(name: str, keywords: frozenset[str]) -> str:
    if _PLAIN.fullmatch(name) and name not in keywords:
        return name
    return '"' + name.replace('"', '""') + '"'
