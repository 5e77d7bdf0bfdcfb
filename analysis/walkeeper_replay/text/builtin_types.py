"""Types that every PostgreSQL has, with the numbers that never change: pg_type.dat of 18. Pure.

They serve if the WAL at hand has nothing of pg_type itself: rows made by initdb are not in WAL.
Types from 10,000 on are left out: their numbers are another version's types.
"""

from __future__ import annotations

# oid, name, length, alignment, kind (b base, r range, m multirange), element (of arrays)
_ROWS = """
    16 bool 1 c b 0; 17 bytea -1 i b 0; 18 char 1 c b 0; 19 name 64 c b 18; 20 int8 8 d b 0; 21 int2
    2 s b 0; 22 int2vector -1 i b 21; 23 int4 4 i b 0; 24 regproc 4 i b 0; 25 text -1 i b 0; 26 oid
    4 i b 0; 27 tid 6 s b 0; 28 xid 4 i b 0; 29 cid 4 i b 0; 30 oidvector -1 i b 26; 114 json -1 i b
    0; 142 xml -1 i b 0; 143 _xml -1 i b 142; 194 pg_node_tree -1 i b 0; 199 _json -1 i b 114; 271
    _xid8 -1 d b 5069; 600 point 16 d b 701; 601 lseg 32 d b 600; 602 path -1 d b 0; 603 box 32 d b
    600; 604 polygon -1 d b 0; 628 line 24 d b 701; 629 _line -1 d b 628; 650 cidr -1 i b 0; 651
    _cidr -1 i b 650; 700 float4 4 i b 0; 701 float8 8 d b 0; 718 circle 24 d b 0; 719 _circle -1 d
    b 718; 774 macaddr8 8 i b 0; 775 _macaddr8 -1 i b 774; 790 money 8 d b 0; 791 _money -1 d b 790;
    829 macaddr 6 i b 0; 869 inet -1 i b 0; 1000 _bool -1 i b 16; 1001 _bytea -1 i b 17; 1002 _char
    -1 i b 18; 1003 _name -1 i b 19; 1005 _int2 -1 i b 21; 1006 _int2vector -1 i b 22; 1007 _int4 -1
    i b 23; 1008 _regproc -1 i b 24; 1009 _text -1 i b 25; 1010 _tid -1 i b 27; 1011 _xid -1 i b 28;
    1012 _cid -1 i b 29; 1013 _oidvector -1 i b 30; 1014 _bpchar -1 i b 1042; 1015 _varchar -1 i b
    1043; 1016 _int8 -1 d b 20; 1017 _point -1 d b 600; 1018 _lseg -1 d b 601; 1019 _path -1 d b
    602; 1020 _box -1 d b 603; 1021 _float4 -1 i b 700; 1022 _float8 -1 d b 701; 1027 _polygon -1 d
    b 604; 1028 _oid -1 i b 26; 1033 aclitem 16 d b 0; 1034 _aclitem -1 d b 1033; 1040 _macaddr -1 i
    b 829; 1041 _inet -1 i b 869; 1042 bpchar -1 i b 0; 1043 varchar -1 i b 0; 1082 date 4 i b 0;
    1083 time 8 d b 0; 1114 timestamp 8 d b 0; 1115 _timestamp -1 d b 1114; 1182 _date -1 i b 1082;
    1183 _time -1 d b 1083; 1184 timestamptz 8 d b 0; 1185 _timestamptz -1 d b 1184; 1186 interval
    16 d b 0; 1187 _interval -1 d b 1186; 1231 _numeric -1 i b 1700; 1263 _cstring -1 i b 2275; 1266
    timetz 12 d b 0; 1270 _timetz -1 d b 1266; 1560 bit -1 i b 0; 1561 _bit -1 i b 1560; 1562 varbit
    -1 i b 0; 1563 _varbit -1 i b 1562; 1700 numeric -1 i b 0; 1790 refcursor -1 i b 0; 2201
    _refcursor -1 i b 1790; 2202 regprocedure 4 i b 0; 2203 regoper 4 i b 0; 2204 regoperator 4 i b
    0; 2205 regclass 4 i b 0; 2206 regtype 4 i b 0; 2207 _regprocedure -1 i b 2202; 2208 _regoper -1
    i b 2203; 2209 _regoperator -1 i b 2204; 2210 _regclass -1 i b 2205; 2211 _regtype -1 i b 2206;
    2949 _txid_snapshot -1 d b 2970; 2950 uuid 16 c b 0; 2951 _uuid -1 i b 2950; 2970 txid_snapshot
    -1 d b 0; 3220 pg_lsn 8 d b 0; 3361 pg_ndistinct -1 i b 0; 3402 pg_dependencies -1 i b 0; 3614
    tsvector -1 i b 0; 3615 tsquery -1 i b 0; 3642 gtsvector -1 i b 0; 3643 _tsvector -1 i b 3614;
    3644 _gtsvector -1 i b 3642; 3645 _tsquery -1 i b 3615; 3734 regconfig 4 i b 0; 3735 _regconfig
    -1 i b 3734; 3769 regdictionary 4 i b 0; 3770 _regdictionary -1 i b 3769; 3802 jsonb -1 i b 0;
    3807 _jsonb -1 i b 3802; 3904 int4range -1 i r 0; 3905 _int4range -1 i b 3904; 3906 numrange -1
    i r 0; 3907 _numrange -1 i b 3906; 3908 tsrange -1 d r 0; 3909 _tsrange -1 d b 3908; 3910
    tstzrange -1 d r 0; 3911 _tstzrange -1 d b 3910; 3912 daterange -1 i r 0; 3913 _daterange -1 i b
    3912; 3926 int8range -1 d r 0; 3927 _int8range -1 d b 3926; 4072 jsonpath -1 i b 0; 4073
    _jsonpath -1 i b 4072; 4089 regnamespace 4 i b 0; 4090 _regnamespace -1 i b 4089; 4096 regrole 4
    i b 0; 4097 _regrole -1 i b 4096; 4191 regcollation 4 i b 0; 4192 _regcollation -1 i b 4191;
    4451 int4multirange -1 i m 0; 4532 nummultirange -1 i m 0; 4533 tsmultirange -1 d m 0; 4534
    tstzmultirange -1 d m 0; 4535 datemultirange -1 i m 0; 4536 int8multirange -1 d m 0; 4600
    pg_brin_bloom_summary -1 i b 0; 4601 pg_brin_minmax_multi_summary -1 i b 0; 5017 pg_mcv_list -1
    i b 0; 5038 pg_snapshot -1 d b 0; 5069 xid8 8 d b 0; 6150 _int4multirange -1 i b 4451; 6151
    _nummultirange -1 i b 4532; 6152 _tsmultirange -1 d b 4533; 6153 _tstzmultirange -1 d b 4534;
    6155 _datemultirange -1 i b 4535; 6157 _int8multirange -1 d b 4536
"""
# Types that no column has: functions take and return them.
_PSEUDO = """
    32 pg_ddl_command; 269 table_am_handler; 325 index_am_handler; 705 unknown; 2249 record; 2275
    cstring; 2276 any; 2277 anyarray; 2278 void; 2279 trigger; 2280 language_handler; 2281 internal;
    2283 anyelement; 2287 _record; 2776 anynonarray; 3115 fdw_handler; 3310 tsm_handler; 3500
    anyenum; 3831 anyrange; 3838 event_trigger; 4537 anymultirange; 4538 anycompatiblemultirange;
    5077 anycompatible; 5078 anycompatiblearray; 5079 anycompatiblenonarray; 5080 anycompatiblerange
"""
# The built-in types: a range's subtype, a multirange's range.
MULTIRANGES = {4451: 3904, 4532: 3906, 4533: 3908, 4534: 3910, 4535: 3912, 4536: 3926}
RANGES = {3904: 23, 3906: 1700, 3908: 1114, 3910: 1184, 3912: 1082, 3926: 20}


def builtin_rows() -> list[tuple[int, str, int, str, str, int]]:
    """Return (oid, name, length, alignment, kind, element) of each type."""
    found = []
    for row in _ROWS.replace("\n", " ").split(";"):
        oid, name, length, alignment, kind, element = row.split()
        found.append((int(oid), name, int(length), alignment, kind, int(element)))
    return found


def pseudo_rows() -> list[tuple[int, str]]:
    """Return (oid, name) of each type that no column has."""
    rows = (row.split() for row in _PSEUDO.replace("\n", " ").split(";"))
    return [(int(oid), name) for oid, name in rows]
