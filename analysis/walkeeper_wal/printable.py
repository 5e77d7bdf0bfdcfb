"""Names and texts of WAL, archives and servers, made fit for a line that people read. Pure.

The rule is `walkeeper_common.printable`; this module adds JSON of one line.
"""

from __future__ import annotations

import json
from typing import Any

from walkeeper_common.printable import UNPRINTABLE, escape_of, printable

__all__ = ["UNPRINTABLE", "escape_of", "json_text", "printable"]


def json_text(value: Any) -> str:
    """Return JSON of one line, with letters of every script and no unprintable character."""
    text = json.dumps(value, ensure_ascii=False)
    return UNPRINTABLE.sub(lambda m: f"\\u{ord(m[0]):04x}", text)
