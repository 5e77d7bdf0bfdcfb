"""The targets by name. They are imported one at a time, so that only what is fuzzed is traced."""

from __future__ import annotations

from importlib import import_module

from tests.proof.fuzz.contract import Target

# The packages to instrument: ours. Tests and other people's code would only be noise.
PACKAGES = (
    "walkeeper_common",
    "walkeeper_proposer",
    "walkeeper_safekeeper",
    "walkeeper_history",
    "walkeeper_pager",
    "walkeeper_cli",
)

PLACES = {
    "messages": ("framed", "MESSAGE"),
    "frames": ("framed", "STREAM"),
    "pg_client": ("postgres_wire", "CLIENT"),
    "pg_session": ("postgres_session", "SESSION"),
    "pg_commands": ("postgres_wire", "COMMANDS"),
    "pg_replies": ("postgres_wire", "REPLIES"),
    "control_file": ("sealed", "CONTROL"),
    "slots_file": ("sealed", "SLOTS"),
    "wal": ("wal", "BYTES"),
    "wal_story": ("wal", "STORY"),
    "entries": ("logical", "ENTRIES"),
    "pgoutput": ("logical", "PGOUTPUT"),
    "log_settings": ("logical", "LOG_SETTINGS"),
    "settings": ("settings_text", "SETTINGS"),
    "configuration_file": ("settings_text", "FILE"),
    "acceptor": ("acceptor", "ACCEPTOR"),
    "creation": ("acceptor", "CREATION"),
    "proposer": ("proposer", "PROPOSER"),
    "fast_appends": ("fast_path", "APPENDS"),
    "fast_acks": ("fast_path", "ACKS"),
    "fast_primary": ("fast_primary", "PRIMARY"),
    "history": ("history", "HISTORY"),
    "archive_names": ("history", "NAMES"),
    "pager_requests": ("pager", "REQUESTS"),
    "pager_index": ("pager", "INDEX"),
}


def load(name: str) -> Target:
    module, attribute = PLACES[name]
    target = getattr(import_module(f"tests.proof.fuzz.{module}"), attribute)
    assert isinstance(target, Target) and target.name == name, f"{name=} {target=}"
    return target
