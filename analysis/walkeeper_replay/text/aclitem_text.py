"""aclitem's bytes as the text that PostgreSQL prints. Pure. Source: acl.h, aclitemout in acl.c."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping

from walkeeper_replay.text.database_text import UnknownText

_LETTERS = "arwdDxtXUCTcsAm"
_SAFE = re.compile(r"[A-Za-z0-9_]+")
_UP_TO_15, _SINCE_16 = struct.Struct("<III"), struct.Struct("<IIQ")


def aclitem_text(data: bytes, roles: Mapping[int, str]) -> str:
    """Return `grantee=rights/grantor`, with the names of roles by their OIDs.

    Raise UnknownText for a role whose name is not known or depends on the server's locale.
    """
    if len(data) == _UP_TO_15.size:
        grantee, grantor, rights = _UP_TO_15.unpack(data)
        granted, with_option = rights & 0xFFFF, rights >> 16
    else:
        grantee, grantor, rights = _SINCE_16.unpack(data)
        granted, with_option = rights & 0xFFFFFFFF, rights >> 32
    letters = "".join(
        letter + "*" * (with_option >> bit & 1)
        for bit, letter in enumerate(_LETTERS)
        if granted >> bit & 1
    )
    to = _role(grantee, roles) if grantee else ""
    return f"{to}={letters}/{_role(grantor, roles)}"


def _role(oid: int, roles: Mapping[int, str]) -> str:
    name = roles.get(oid, "")
    if not name or not name.isascii():
        raise UnknownText(f"the role {oid} of an aclitem")
    return name if _SAFE.fullmatch(name) else '"' + name.replace('"', '""') + '"'
