"""Names of relations from the WAL itself: catalogs replayed over a base backup, `--base`.

Contract: the names cover every file that pg_class named between the backup and the end of the plan.
That includes dropped files. The WAL has to begin at the start of the backup or before.
"""

from __future__ import annotations

import re

from walkeeper_history.rows.relation_names import NamedRelation, RelationNames
from walkeeper_history.wal.plan import Plan, make_plan
from walkeeper_history.wal.sweep import OnProblem
from walkeeper_history.wal.wal_files import WalFiles
from walkeeper_replay.catalogs.catalog_history import CatalogHistory, Named
from walkeeper_replay.catalogs.table_names import in_quotes
from walkeeper_replay.redo.base import BaseDirectory
from walkeeper_replay.table_at import refuse_before

_TOAST_SCHEMA, _INDEX = "pg_toast", "i"
_PLAIN = re.compile(r"[a-z_][a-z0-9_$]*")
_GLOBAL_TABLESPACE = 1664


def replayed_names(
    files: WalFiles, plan: Plan, base_directory: str, on_problem: OnProblem
) -> RelationNames:
    """Return the names, at the cost of one pass over the WAL from the backup on."""
    base = BaseDirectory(base_directory)
    whole = make_plan(files, timeline=plan.timeline, start_lsn=base.redo_lsn)
    refuse_before(base, whole, None)
    until = plan.segments[-1].end_lsn
    history = CatalogHistory.read(
        files, whole, base=base, until=until, keeps_commits=False, on_problem=on_problem
    )
    databases = {oid: each.name for oid, each in history.databases(history.end_lsn).items()}
    named = history.names()
    owners = {
        (file[1], each.oid): each for file, through_time in named.items() for each in through_time
    }
    names = RelationNames(plan.system_id)
    for (tablespace, database, relfilenode), through_time in named.items():
        last = through_time[-1]
        shared = tablespace == _GLOBAL_TABLESPACE
        names.add(
            NamedRelation(
                tablespace, database, relfilenode, last.oid,
                "" if shared else databases.get(database, str(database)),
                _shown(last, owners, database),
            )
        )  # fmt: skip
    return names


def _shown(named: Named, owners: dict[tuple[int, int], Named], database: int) -> str:
    """Return the name in the form of `history catalog`."""
    if named.schema != _TOAST_SCHEMA:
        return ".".join(
            part if _PLAIN.fullmatch(part) else in_quotes(part)
            for part in (named.schema, named.name)
        )
    if named.kind == _INDEX:
        return f"TOAST index {named.name}"
    number = named.name.removeprefix("pg_toast_")
    owner = owners.get((database, int(number))) if number.isdigit() else None
    return "TOAST of " + ("?" if owner is None else _shown(owner, owners, database))
