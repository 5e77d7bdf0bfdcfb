"""Every character in every encoding as PostgreSQL itself converts it, or refused."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.support.postgres_server import PostgresServer
from walkeeper_common.postgres.client_encoding import (
    ALIASES,
    CODECS,
    WITHOUT_CODEC,
    ClientEncoding,
    canonical_name,
    client_encoding,
)
from walkeeper_common.postgres.pgwire import SqlRefused

pytestmark = pytest.mark.postgres

ENCODINGS = sorted(set(CODECS) - {"UTF8"})
# One of each family is in the gate, all are in the soak.
IN_THE_GATE = ("BIG5", "EUC_JP", "EUC_KR", "KOI8R", "LATIN1", "LATIN9", "SJIS", "WIN1252")
SOME = [
    pytest.param(name, marks=[] if name in IN_THE_GATE else [pytest.mark.soak])
    for name in ENCODINGS
]
CHARACTERS = [chr(point) for point in (*range(1, 0xD800), *range(0xE000, 0x11000))]
SAMPLED = 2000
CONVERTS = """
CREATE FUNCTION converts(t text, e text) RETURNS bool LANGUAGE plpgsql AS $$
BEGIN PERFORM convert_to(t, e); RETURN true; EXCEPTION WHEN untranslatable_character THEN
RETURN false; END $$"""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer.create(initdb_options=["--encoding=UTF8", "--locale=C"]) as made:
        made.sql(CONVERTS)
        yield made


def encoded(encoding: ClientEncoding, character: str) -> bytes | None:
    try:
        return encoding.encode(character)
    except SqlRefused as refused:
        assert refused.sqlstate == "22P05"
        return None


@pytest.mark.parametrize("name", SOME)
def test_characters_are_converted_as_the_server_does(server: PostgresServer, name: str) -> None:
    """A sample stands for the refused ones, with all that Python's codec converts."""
    encoding = client_encoding(name)
    known = {one: encoded(encoding, one) for one in CHARACTERS}
    text = "".join(one for one in CHARACTERS if known[one] is not None)
    assert len(text) > 200
    with server.connect() as connection:
        found = connection.execute("SELECT convert_to(%s, %s)", (text, name)).fetchone()
        assert found == (encoding.encode(text),)
        refused = [one for one in CHARACTERS if known[one] is None]
        near = [one for one in refused if _is_known(CODECS[name], one)]
        asked = [*random.Random(name).sample(refused, SAMPLED), *near]
        each = "SELECT one FROM unnest(%s::text[]) one WHERE converts(one, %s)"
        assert connection.execute(each, (asked, name)).fetchall() == []


@pytest.mark.parametrize("name", SOME)
def test_decoding_gives_what_the_server_decodes(server: PostgresServer, name: str) -> None:
    encoding = client_encoding(name)
    kept = list[tuple[bytes, str]]()
    for character in CHARACTERS:
        data = encoded(encoding, character)
        try:
            kept += [] if data is None else [(data, encoding.decode(data))]
        except SqlRefused as refused:
            assert refused.sqlstate == "22021"
    assert len(kept) > 200
    data = b"".join(one[0] for one in kept)
    with server.connect() as connection:
        ask = "SELECT convert_from(%s, %s)"
        assert connection.execute(ask, (data, name)).fetchone() == ("".join(o[1] for o in kept),)


def _is_known(codec: str, character: str) -> bool:
    try:
        return bool(character.encode(codec))
    except UnicodeEncodeError:
        return False


def test_names_are_the_servers(server: PostgresServer) -> None:
    every = [*CODECS, *WITHOUT_CODEC, *ALIASES, "SQL_ASCII", "utf-8", "ISO-8859-1", "Latin 1"]
    with server.connect() as connection:
        for name in every:
            ask = "SELECT pg_encoding_to_char(pg_char_to_encoding(%s))"
            assert connection.execute(ask, (name,)).fetchone() == (canonical_name(name),), name
    with pytest.raises(SqlRefused, match="invalid value") as unknown:
        canonical_name("klingon")
    assert unknown.value.sqlstate == "22023"


@pytest.mark.parametrize("name", WITHOUT_CODEC)
def test_an_encoding_without_a_codec_is_refused_with_what_to_do(name: str) -> None:
    with pytest.raises(SqlRefused, match="not available from a safekeeper") as refused:
        client_encoding(name)
    assert refused.value.sqlstate == "0A000" and "UTF8" in refused.value.hint
