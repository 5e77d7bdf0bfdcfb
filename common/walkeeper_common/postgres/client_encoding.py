"""Encodings of PostgreSQL's clients, with PostgreSQL's own conversions from UTF-8. Pure.

    client_encoding(name)      the encoding of a name or an alias, as the startup packet gives it
    encoding.encode(text)      the bytes for the client; 22P05 if a character has no equivalent
    encoding.decode(data)      the text of a client's command; 22021 if it is invalid

Python's codecs do the work. They differ from PostgreSQL's maps in a few characters of the East
Asian encodings, which `_changed` replaces. A test compares every character with a running server.
An encoding without such a codec is refused (0A000).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from walkeeper_common.postgres.pgwire import SqlRefused

CODECS = {
    "UTF8": "utf_8",
    "EUC_JP": "euc_jp",
    "EUC_CN": "gb2312",
    "EUC_KR": "euc_kr",
    "LATIN1": "latin_1",
    "LATIN2": "iso8859_2",
    "LATIN3": "iso8859_3",
    "LATIN4": "iso8859_4",
    "LATIN5": "iso8859_9",
    "LATIN6": "iso8859_10",
    "LATIN7": "iso8859_13",
    "LATIN8": "iso8859_14",
    "LATIN9": "iso8859_15",
    "LATIN10": "iso8859_16",
    "ISO_8859_5": "iso8859_5",
    "ISO_8859_6": "iso8859_6",
    "ISO_8859_7": "iso8859_7",
    "ISO_8859_8": "iso8859_8",
    "KOI8R": "koi8_r",
    "KOI8U": "koi8_u",
    "WIN866": "cp866",
    "WIN874": "cp874",
    **{f"WIN{page}": f"cp{page}" for page in range(1250, 1259)},
    "SJIS": "shift_jis",
    "BIG5": "big5",
    "GBK": "gbk",
    "UHC": "cp949",
}
SQL_ASCII = "SQL_ASCII"  # no conversion: the bytes of the database
WITHOUT_CODEC = (
    "EUC_JIS_2004",
    "EUC_TW",
    "GB18030",
    "JOHAB",
    "MULE_INTERNAL",
    "SHIFT_JIS_2004",
)
ALIASES = {  # pg_encname_tbl, but for the names themselves
    "abc": "WIN1258",
    "alt": "WIN866",
    "koi8": "KOI8R",
    "mskanji": "SJIS",
    "shiftjis": "SJIS",
    "tcvn": "WIN1258",
    "tcvn5712": "WIN1258",
    "unicode": "UTF8",
    "vscii": "WIN1258",
    "win": "WIN1251",
    "win932": "SJIS",
    "win936": "GBK",
    "win949": "UHC",
    "win950": "BIG5",
    "windows932": "SJIS",
    "windows936": "GBK",
    "windows949": "UHC",
    "windows950": "BIG5",
    "windows866": "WIN866",
    "windows874": "WIN874",
    **{f"windows{page}": f"WIN{page}" for page in range(1250, 1259)},
    **{f"iso8859{part}": f"LATIN{part}" for part in range(1, 5)},
    "iso88599": "LATIN5",
    "iso885910": "LATIN6",
    "iso885913": "LATIN7",
    "iso885914": "LATIN8",
    "iso885915": "LATIN9",
    "iso885916": "LATIN10",
}
PRIVATE_USE = 0xE000
HANGUL = range(0xAC00, 0xD7A4)
KOREAN_POST = "\u327e"  # in PostgreSQL's maps, and in none of Python's


@dataclass(frozen=True, slots=True)
class ClientEncoding:
    """One encoding. `_changed` has PostgreSQL's bytes of a character, None if there are none."""

    name: str
    _codec: str
    _changed: Mapping[str, bytes | None] = field(default_factory=dict)

    @property
    def is_utf8(self) -> bool:
        return self.name == "UTF8"

    def encode(self, text: str) -> bytes:
        """Return the client's bytes; raise SqlRefused (22P05) if a character has no equivalent."""
        try:
            if self._changed.keys().isdisjoint(text):
                return text.encode(self._codec)
        except UnicodeEncodeError:
            pass
        return b"".join(self._encode_character(character) for character in text)

    def _encode_character(self, character: str) -> bytes:
        if character in self._changed:
            data = self._changed[character]
        else:
            try:
                data = character.encode(self._codec)
            except UnicodeEncodeError:
                data = None
        if data is None:
            shown = _shown(character.encode())
            raise SqlRefused(
                "22P05",
                f'character with byte sequence {shown} in encoding "UTF8" has no equivalent '
                f'in encoding "{self.name}"',
            )
        return data

    def from_utf8(self, data: bytes) -> bytes:
        """Return the client's bytes of a UTF-8 text."""
        return data if data.isascii() else self.encode(data.decode())

    def shown(self, text: str) -> bytes:
        """Return the client's bytes of a message; a character without an equivalent becomes `?`."""
        try:
            return self.encode(text)
        except SqlRefused:
            return b"".join(self._encode_or_mark(character) for character in text)

    def _encode_or_mark(self, character: str) -> bytes:
        try:
            return self._encode_character(character)
        except SqlRefused:
            return b"?"

    def decode(self, data: bytes) -> str:
        """Return a client's text. SqlRefused 22021 if its bytes are not those that `encode` gives.

        Bytes that PostgreSQL accepts as a second form of a character are refused, too.
        """
        if data.isascii():
            return data.decode("ascii")
        try:
            text = data.decode("cp932" if self.name == "SJIS" else self._codec)
            if self.name == "EUC_JP":  # two characters have one code
                text = text.replace("\xa6", "\uffe4")
            if self.is_utf8 or self.encode(text) == data:
                return text
        except (UnicodeDecodeError, SqlRefused):
            pass
        raise SqlRefused("22021", f'invalid byte sequence for encoding "{self.name}"')


def _shown(data: bytes) -> str:
    return " ".join(f"0x{byte:02x}" for byte in data)


UTF8 = ClientEncoding("UTF8", "utf_8")


def canonical_name(name: str) -> str:
    """Return PostgreSQL's name of an encoding; raise SqlRefused (22023) if it has no such name.

    As in PostgreSQL letters and digits count alone, in any case.
    """
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    known = {each.replace("_", "").lower(): each for each in (*CODECS, *WITHOUT_CODEC, SQL_ASCII)}
    found = known.get(plain) or ALIASES.get(plain)
    if found is None:
        raise SqlRefused("22023", f'invalid value for parameter "client_encoding": "{name}"')
    return found


@functools.cache
def client_encoding(name: str) -> ClientEncoding:
    """Return the encoding of this name.

    Raise SqlRefused: 22023 for an unknown name, 0A000 for an encoding without a codec.
    """
    known = canonical_name(name)
    if known == "UTF8":
        return UTF8
    if known not in CODECS:
        raise SqlRefused(
            "0A000",
            f'conversion between UTF8 and "{known}" is not available from a safekeeper',
            hint="Connect with client_encoding = UTF8, or subscribe from a database in UTF8.",
        )
    return ClientEncoding(known, CODECS[known], _changes(known))


def _changes(name: str) -> dict[str, bytes | None]:
    """Return the characters for which PostgreSQL's map differs from Python's codec."""
    match name:
        case "EUC_JP":
            return _changes_of_euc_jp()
        case "SJIS":
            return _changes_of_sjis()
        case "EUC_KR":  # Python spells the other syllables out, in eight bytes
            long = (chr(point) for point in HANGUL if len(chr(point).encode("euc_kr")) > 2)
            return {**dict.fromkeys(long), KOREAN_POST: b"\xa2\xe8"}
        case "UHC":  # with the rows of user-defined characters
            rows = [bytes((lead, trail)) for lead in (0xC9, 0xFE) for trail in range(0xA1, 0xFF)]
            private = {chr(PRIVATE_USE + at): code for at, code in enumerate(rows)}
            return {**private, KOREAN_POST: b"\xa2\xe8"}
        case "GBK":
            return {"\u20ac": b"\x80"}
        case "BIG5":
            more = "\u7881\u92b9\u88cf\u58bb\u6052\u7ca7\u5afa"  # F9D6 to F9DC
            added = {one: bytes((0xF9, 0xD6 + at)) for at, one in enumerate(more)}
            return {**added, "\ufffd": b"\xa1\x5a", "\u02cd": None, "\u2574": None, "\uffe3": None}
        case _:
            return {}


def _ibm_characters() -> dict[str, bytes]:
    """Return the characters that IBM added to Shift JIS, FA40 to FC4B, in their order."""
    found = {}
    for lead in (0xFA, 0xFB, 0xFC):
        for trail in range(0x40, 0xFD):
            code = bytes((lead, trail))
            try:
                found[code.decode("cp932")] = code
            except UnicodeDecodeError:  # no character
                continue
    return found


def _microsoft_characters() -> dict[str, bytes]:
    """Return row 13 (NEC's), and the codes that Microsoft maps otherwise than JIS."""
    rows = (b"\x81\x60", b"\x81\x61", b"\x81\x7c", b"\x81\x91", b"\x81\x92", b"\x81\xca")
    nec = (bytes((0x87, trail)) for trail in range(0x40, 0x9D))
    found = dict[str, bytes]()
    for code in (*rows, *nec):
        try:
            found.setdefault(code.decode("cp932"), code)
        except UnicodeDecodeError:
            continue
    return found


def _has(codec: str, character: str) -> bool:
    try:
        character.encode(codec)
    except UnicodeEncodeError:
        return False
    return True


def _changes_of_sjis() -> dict[str, bytes | None]:
    """Return Microsoft's and IBM's characters. IBM's code of two counts, but for U+FFE2."""
    both = {**_microsoft_characters(), **_ibm_characters(), "\uffe2": b"\x81\xca"}
    return {one: code for one, code in both.items() if not _has("shift_jis", one)}


def _changes_of_euc_jp() -> dict[str, bytes | None]:
    """Return Microsoft's characters in place, and IBM's after JIS X 0212, from 8FF3F3 on."""
    found = dict[str, bytes | None].fromkeys("\xa2\xa3\xa5\xac\u2016\u203e\u2212\u301c")
    for one, (lead, trail) in _microsoft_characters().items():
        if one == "\u2116" or not _has("euc_jp", one):
            found[one] = _euc_of_sjis(lead, trail)
    place = (0xF3 - 0xA1) * 94 + 0xF3 - 0xA1
    for one in _ibm_characters():
        if one == "\uffe4":
            found[one] = b"\x8f\xa2\xc3"
        elif one != "\uffe2" and (one == "\u2116" or not _has("euc_jp", one)):
            row, cell = divmod(place, 94)
            found.setdefault(one, bytes((0x8F, 0xA1 + row, 0xA1 + cell)))
            place += 1
    return found


def _euc_of_sjis(lead: int, trail: int) -> bytes:
    """Return the place of a two-byte code below A0 in EUC_JP."""
    row = (lead - 0x81) * 2 + (trail >= 0x9F)
    cell = trail - (0x9F if trail >= 0x9F else 0x40 + (trail > 0x7F))
    return bytes((0xA1 + row, 0xA1 + cell))
