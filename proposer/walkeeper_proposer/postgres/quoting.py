"""Names and values as parts of SQL."""

from __future__ import annotations


def quote_identifier(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def quote_literal(text: str) -> str:
    escaped = text.replace("'", "''")
    return f"'{escaped}'"
