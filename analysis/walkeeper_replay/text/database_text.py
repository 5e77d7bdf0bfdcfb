"""Bytes of text in a database's encoding. Pure.

    decoded(data, codec_of(pg_database.encoding)) -> str

Contract: the text is that of the server's conversion to UTF-8, or UnknownText is raised. No
character is replaced. In an encoding that Python does not have (EUC_TW, MULE_INTERNAL) only ASCII
is known, in a SQL_ASCII database only UTF-8. Numbers: pg_wchar.h.
"""

from __future__ import annotations

from collections.abc import Callable

Decode = Callable[[bytes], str]
"""A function that decodes as `decoded` does, with the database's codec."""
_SQL_ASCII, _UTF8 = 0, 6
_CODECS = {
    _SQL_ASCII: "utf-8", 1: "euc_jp", 2: "gb2312", 3: "euc_kr", 5: "euc_jis_2004", _UTF8: "utf-8",
    8: "latin-1", 9: "iso8859-2", 10: "iso8859-3", 11: "iso8859-4", 12: "iso8859-9",
    13: "iso8859-10", 14: "iso8859-13", 15: "iso8859-14", 16: "iso8859-15", 17: "iso8859-16",
    18: "cp1256", 19: "cp1258", 20: "cp866", 21: "cp874", 22: "koi8-r", 23: "cp1251",
    24: "cp1252", 25: "iso8859-5", 26: "iso8859-6", 27: "iso8859-7", 28: "iso8859-8",
    29: "cp1250", 30: "cp1253", 31: "cp1254", 32: "cp1255", 33: "cp1257", 34: "koi8-u",
}  # fmt: skip
# Characters in which PostgreSQL's conversions differ from Python's codec.
_OTHERS = {
    "euc_jp": str.maketrans(
        "\u301c\u2016\u2212\xa2\xa3\xac\xa6", "\uff5e\u2225\uff0d\uffe0\uffe1\uffe2\uffe4"
    ),
    "euc_jis_2004": str.maketrans("\uffe3\u2015\uffe5\u2985\u2986", "\u203e\u2014\xa5\uff5f\uff60"),
}


class UnknownText(ValueError):
    """The printed form of a value is not known."""


class DamagedValue(UnknownText):
    """The bytes of a value do not have the layout of its type."""


def fits(condition: bool, what: str) -> None:
    """Raise DamagedValue, with the part's name, unless the layout of a value holds."""
    if not condition:
        raise DamagedValue(f"{what} does not fit the value")


def codec_of(encoding: int) -> str:
    """Return Python's name of an encoding's number."""
    return _CODECS.get(encoding, "ascii")


def decoded(data: bytes, codec: str) -> str:
    """Return the text of bytes; raise UnknownText if they are no text in this encoding."""
    try:
        text = data.decode(codec)
    except UnicodeDecodeError as error:
        raise UnknownText(str(error)) from error
    return text.translate(_OTHERS[codec]) if codec in _OTHERS else text


def decoded_name(data: bytes, codec: str) -> str:
    """Return a name with bytes that are no characters as \\xNN, so that it always has a text."""
    try:
        return decoded(data, codec)
    except UnknownText:
        return data.decode("ascii", errors="backslashreplace")
