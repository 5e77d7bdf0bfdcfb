"""JSON of one line with names and texts of WAL, archives and servers. Pure.

The rule of what is fit to print is `walkeeper_common.operator_text.printable`.
"""

from __future__ import annotations

import json
from typing import Any

from walkeeper_common.operator_text.printable import UNPRINTABLE


def json_text(value: Any) -> str:
    """Return JSON of one line, with letters of every script and no unprintable character."""
    text = json.dumps(value, ensure_ascii=False)
    return UNPRINTABLE.sub(lambda m: f"\\u{ord(m[0]):04x}", text)
