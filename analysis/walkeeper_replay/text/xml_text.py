"""xml as PostgreSQL prints it. Pure. Source: xml_out_internal and parse_xml_decl in xml.c.

A value is stored as it was written. Its text has no encoding in the declaration, and no declaration
at all if the version is 1.0 and nothing else is left.
"""

from __future__ import annotations

import re

_SPACE = r"[ \t\n\r]"
_IS = rf"{_SPACE}*={_SPACE}*"
_DECLARATION = re.compile(
    rf"<\?xml{_SPACE}+version{_IS}(?P<mark>['\"])(?P<version>.*?)(?P=mark)"
    rf"(?:{_SPACE}+encoding{_IS}(?:'[^']*'|\"[^\"]*\"))?"
    rf"(?:{_SPACE}+standalone{_IS}(?P<quote>['\"])(?P<standalone>yes|no)(?P=quote))?"
    rf"{_SPACE}*\?>",
    re.DOTALL,
)


def xml_text(stored: str) -> str:
    """Return the text that SELECT prints for a stored value."""
    found = _DECLARATION.match(stored)
    if found is None or not found[0].isascii():
        return stored.removeprefix("\n")
    rest = stored[found.end() :]
    version, standalone = found["version"], found["standalone"]
    if version == "1.0" and standalone is None:
        return rest.removeprefix("\n")
    alone = "" if standalone is None else f' standalone="{standalone}"'
    return f'<?xml version="{version}"{alone}?>{rest}'
