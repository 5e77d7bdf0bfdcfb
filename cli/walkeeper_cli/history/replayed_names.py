"""Names of relations from the WAL itself: catalogs replayed over a base backup, `--base`.

Contract: the names cover every file that pg_class named between the backup and the end of the plan.
That includes dropped files. A file that several relations had in turn has the name of each. The WAL
has to begin at the start of the backup or before.
"""

from __future__ import annotations

import re

from walkeeper_history.rows.relation_names import NamedRelation, RelationNames, Tenancy
from walkeeper_replay.catalogs.catalog_history import CatalogHistory, Named
from walkeeper_replay.catalogs.table_names import in_quotes
from walkeeper_replay.changes.change_events import Tenure, tenures
from walkeeper_replay.redo.base import BaseDirectory
from walkeeper_replay.table_at import refuse_before
from walkeeper_wal.sources.plan import Plan, make_plan
from walkeeper_wal.sources.threaded_reading import OnProblem
from walkeeper_wal.sources.wal_files import WalFiles

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
        is_created_in = history.file_steps(database).is_created_in
        turns: dict[Tenure, list[Named]] = {}
        for each, tenure in tenures(through_time, is_created_in):
            turns.setdefault(tenure, []).append(each)
        for tenure, own in turns.items():
            last, until = own[-1], min(tenure.until, max(each.end for each in own))
            names.add(
                NamedRelation(
                    tablespace, database, relfilenode, last.oid,
                    "" if tablespace == _GLOBAL_TABLESPACE
                    else databases.get(database, str(database)),
                    _shown(last, owners, database),
                ),
                Tenancy(own[0].begin, tenure.after, until, base.redo_lsn),
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
