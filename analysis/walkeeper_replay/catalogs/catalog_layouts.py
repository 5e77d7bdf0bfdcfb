"""The columns of the catalogs that name and describe tables, for each major version. Pure.

    layout("pg_class", 17) -> [("oid", 4, 4), …]      name, length (-1 varlena), alignment

These catalogs describe themselves in rows that initdb makes, which are not in WAL; their columns do
not change within a major version. Source: pg_attribute of each version's own servers.
"""

from __future__ import annotations

from functools import cache

# Letter → length, alignment. o and i are four bytes, h is two, n is a name, and v and d are varlena
# by 4 and by 8.
_KINDS = {
    "o": (4, 4), "i": (4, 4), "f": (4, 4), "h": (2, 2), "b": (1, 1), "c": (1, 1),
    "n": (64, 1), "v": (-1, 4), "d": (-1, 8),
}  # fmt: skip
OIDS = {
    "pg_type": 1247, "pg_attribute": 1249, "pg_proc": 1255, "pg_class": 1259, "pg_authid": 1260,
    "pg_database": 1262, "pg_index": 2610, "pg_inherits": 2611, "pg_namespace": 2615,
    "pg_db_role_setting": 2964, "pg_enum": 3501, "pg_range": 3541,
    "pg_ts_dict": 3600, "pg_ts_config": 3602, "pg_operator": 2617, "pg_collation": 3456,
}  # fmt: skip
SHARED = frozenset({"pg_authid", "pg_database", "pg_db_role_setting"})
# Keyed by the first version that has them so. Columns after the last wanted one are left out.
_LAYOUTS: dict[str, dict[int, str]] = {
    "pg_type": {
        13: """oid:o typname:n typnamespace:o typowner:o typlen:h typbyval:b typtype:c
            typcategory:c typispreferred:b typisdefined:b typdelim:c typrelid:o typelem:o
            typarray:o typinput:o typoutput:o typreceive:o typsend:o typmodin:o typmodout:o
            typanalyze:o typalign:c typstorage:c typnotnull:b typbasetype:o typtypmod:i""",
        14: """oid:o typname:n typnamespace:o typowner:o typlen:h typbyval:b typtype:c
            typcategory:c typispreferred:b typisdefined:b typdelim:c typrelid:o typsubscript:o
            typelem:o typarray:o typinput:o typoutput:o typreceive:o typsend:o typmodin:o
            typmodout:o typanalyze:o typalign:c typstorage:c typnotnull:b typbasetype:o
            typtypmod:i""",
    },
    "pg_attribute": {
        13: """attrelid:o attname:n atttypid:o attstattarget:i attlen:h attnum:h attndims:i
            attcacheoff:i atttypmod:i attbyval:b attstorage:c attalign:c attnotnull:b atthasdef:b
            atthasmissing:b attidentity:c attgenerated:c attisdropped:b attislocal:b
            attinhcount:i attcollation:o attacl:v attoptions:v attfdwoptions:v attmissingval:d""",
        14: """attrelid:o attname:n atttypid:o attstattarget:i attlen:h attnum:h attndims:i
            attcacheoff:i atttypmod:i attbyval:b attalign:c attstorage:c attcompression:c
            attnotnull:b atthasdef:b atthasmissing:b attidentity:c attgenerated:c attisdropped:b
            attislocal:b attinhcount:i attcollation:o attacl:v attoptions:v attfdwoptions:v
            attmissingval:d""",
        16: """attrelid:o attname:n atttypid:o attlen:h attnum:h attcacheoff:i atttypmod:i
            attndims:h attbyval:b attalign:c attstorage:c attcompression:c attnotnull:b
            atthasdef:b atthasmissing:b attidentity:c attgenerated:c attisdropped:b attislocal:b
            attinhcount:h attstattarget:h attcollation:o attacl:d attoptions:v attfdwoptions:v
            attmissingval:d""",
        17: """attrelid:o attname:n atttypid:o attlen:h attnum:h attcacheoff:i atttypmod:i
            attndims:h attbyval:b attalign:c attstorage:c attcompression:c attnotnull:b
            atthasdef:b atthasmissing:b attidentity:c attgenerated:c attisdropped:b attislocal:b
            attinhcount:h attcollation:o attstattarget:h attacl:d attoptions:v attfdwoptions:v
            attmissingval:d""",
        18: """attrelid:o attname:n atttypid:o attlen:h attnum:h atttypmod:i attndims:h attbyval:b
            attalign:c attstorage:c attcompression:c attnotnull:b atthasdef:b atthasmissing:b
            attidentity:c attgenerated:c attisdropped:b attislocal:b attinhcount:h
            attcollation:o attstattarget:h attacl:d attoptions:v attfdwoptions:v
            attmissingval:d""",
    },
    "pg_class": {
        13: """oid:o relname:n relnamespace:o reltype:o reloftype:o relowner:o relam:o
            relfilenode:o reltablespace:o relpages:i reltuples:f relallvisible:i reltoastrelid:o
            relhasindex:b relisshared:b relpersistence:c relkind:c relnatts:h relchecks:h
            relhasrules:b relhastriggers:b relhassubclass:b relrowsecurity:b
            relforcerowsecurity:b relispopulated:b relreplident:c relispartition:b relrewrite:o""",
        18: """oid:o relname:n relnamespace:o reltype:o reloftype:o relowner:o relam:o
            relfilenode:o reltablespace:o relpages:i reltuples:f relallvisible:i relallfrozen:i
            reltoastrelid:o relhasindex:b relisshared:b relpersistence:c relkind:c relnatts:h
            relchecks:h relhasrules:b relhastriggers:b relhassubclass:b relrowsecurity:b
            relforcerowsecurity:b relispopulated:b relreplident:c relispartition:b relrewrite:o""",
    },
    "pg_database": {
        13: """oid:o datname:n datdba:o encoding:i datcollate:n datctype:n datistemplate:b
            datallowconn:b datconnlimit:i datlastsysoid:o datfrozenxid:o datminmxid:o
            dattablespace:o""",
        15: """oid:o datname:n datdba:o encoding:i datlocprovider:c datistemplate:b datallowconn:b
            datconnlimit:i datfrozenxid:o datminmxid:o dattablespace:o""",
        17: """oid:o datname:n datdba:o encoding:i datlocprovider:c datistemplate:b datallowconn:b
            dathasloginevt:b datconnlimit:i datfrozenxid:o datminmxid:o dattablespace:o""",
    },
    "pg_index": {
        13: """indexrelid:o indrelid:o indnatts:h indnkeyatts:h indisunique:b indisprimary:b
            indisexclusion:b indimmediate:b indisclustered:b indisvalid:b indcheckxmin:b
            indisready:b indislive:b indisreplident:b indkey:v""",
        15: """indexrelid:o indrelid:o indnatts:h indnkeyatts:h indisunique:b
            indnullsnotdistinct:b indisprimary:b indisexclusion:b indimmediate:b
            indisclustered:b indisvalid:b indcheckxmin:b indisready:b indislive:b
            indisreplident:b indkey:v""",
    },
    "pg_inherits": {13: "inhrelid:o inhparent:o"},
    "pg_ts_dict": {13: "oid:o dictname:n dictnamespace:o"},
    "pg_ts_config": {13: "oid:o cfgname:n cfgnamespace:o"},
    "pg_proc": {
        13: """oid:o proname:n pronamespace:o proowner:o prolang:o procost:f prorows:f
            provariadic:o prosupport:o prokind:c prosecdef:b proleakproof:b proisstrict:b
            proretset:b provolatile:c proparallel:c pronargs:h pronargdefaults:h prorettype:o
            proargtypes:v""",
    },
    "pg_operator": {
        13: """oid:o oprname:n oprnamespace:o oprowner:o oprkind:c oprcanmerge:b oprcanhash:b
            oprleft:o oprright:o""",
    },
    "pg_collation": {
        13: """oid:o collname:n collnamespace:o collowner:o collprovider:c collisdeterministic:b
            collencoding:i""",
    },
    "pg_authid": {13: "oid:o rolname:n"},
    "pg_db_role_setting": {13: "setdatabase:o setrole:o setconfig:v"},
    "pg_namespace": {13: "oid:o nspname:n"},
    "pg_enum": {13: "oid:o enumtypid:o enumsortorder:f enumlabel:n"},
    "pg_range": {13: "rngtypid:o rngsubtype:o", 14: "rngtypid:o rngsubtype:o rngmultitypid:o"},
}


WANTED: dict[str, tuple[str, ...]] = {
    "pg_class": (
        "oid", "relname", "relnamespace", "reltype", "relfilenode", "reltablespace",
        "reltoastrelid", "relpersistence", "relkind", "relnatts", "relrewrite",
        "relhassubclass", "relam",
    ),
    "pg_attribute": (
        "attrelid", "attname", "atttypid", "attlen", "attnum", "atttypmod", "attalign",
        "attnotnull", "atthasmissing", "attgenerated", "attisdropped", "attmissingval",
    ),
    "pg_type": (
        "oid", "typname", "typnamespace", "typlen", "typtype", "typrelid", "typelem", "typalign",
        "typbasetype",
    ),
    "pg_namespace": ("oid", "nspname"),
    "pg_database": ("oid", "datname", "encoding", "dattablespace"),
    "pg_authid": ("oid", "rolname"),
    "pg_db_role_setting": ("setdatabase", "setrole", "setconfig"),
    "pg_index": ("indexrelid", "indrelid", "indnkeyatts", "indisprimary", "indimmediate", "indkey"),
    "pg_inherits": ("inhrelid", "inhparent"),
    "pg_enum": ("oid", "enumtypid", "enumlabel"),
    "pg_ts_dict": ("oid", "dictname", "dictnamespace"),
    "pg_ts_config": ("oid", "cfgname", "cfgnamespace"),
    "pg_proc": ("oid", "proname", "pronamespace", "proargtypes"),
    "pg_operator": ("oid", "oprname", "oprnamespace", "oprleft", "oprright"),
    "pg_collation": ("oid", "collname", "collnamespace", "collprovider", "collencoding"),
    "pg_range": ("rngtypid", "rngsubtype", "rngmultitypid"),
}  # fmt: skip
"""By catalog: the columns that are read."""


@cache
def layout(catalog: str, major: int) -> tuple[tuple[str, int, int], ...]:
    """Name, length and alignment of each column."""
    versions = _LAYOUTS[catalog]
    text = versions[max(version for version in versions if version <= major)]
    pairs = (column.split(":") for column in text.split())
    return tuple((name, *_KINDS[kind]) for name, kind in pairs)
