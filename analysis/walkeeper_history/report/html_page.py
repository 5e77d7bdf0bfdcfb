"""The report: one HTML file that needs nothing else, for a browser without network.

    render(data, title=…, names=…) -> str

Contract: everything from the archive is escaped. Tables are cut to a readable length and say so.
Without relation names, the page shows the numbers in WAL: tablespace/database/relfilenode.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from html import escape as escape_html
from importlib.resources import files as package_files

import numpy as np

from walkeeper_common.lsn import Lsn
from walkeeper_common.operator_text.printable import printable
from walkeeper_history.report.charts import Bar, iec, share, stacked
from walkeeper_history.report.checkpoint_spacing import Spacing, spacings
from walkeeper_history.report.data import ReportData
from walkeeper_history.rows.relation_names import RelationNames
from walkeeper_wal.records.segment import Column
from walkeeper_wal.sources.plan import Problem

BUCKETS = 120
ROWS_MAX = 25
WORTHWHILE = 0.8
SPACINGS_S = (60, 300, 600, 900, 1800, 3600)
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)

Cells = Iterable[str]


def escape(text: str) -> str:
    """Return text that is neither HTML nor unprintable."""
    return escape_html(printable(text))


def render(data: ReportData, *, title: str, names: RelationNames) -> str:
    """Return the whole page."""
    log = data.log()
    known = log[log[:, 1] > 0]
    parts = [
        _summary(data, known),
        _problems(data),
        _rate(data, known),
        _resource_managers(data),
        _relations(data, names),
        _transactions(data),
        _checkpoints(data),
        _advice(data, known),
    ]
    style = package_files("walkeeper_history.report").joinpath("page.css").read_text("utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head>\n"
        f"<body><main><h1>{escape(title)}</h1>\n" + "\n".join(parts) + "\n</main></body></html>\n"
    )


def _section(heading: str, body: str, note: str = "") -> str:
    said = f'<p class="note">{escape(note)}</p>' if note else ""
    return f"<section><h2>{escape(heading)}</h2>{said}{body}</section>"


def _table(heads: Cells, rows: Iterable[Cells], kind: str = "numbers") -> str:
    """Return an HTML table of HTML cells.

    The first column is text in a table of `numbers`, and every column in one of `texts`.
    """
    head = "".join(f"<th>{escape(cell)}</th>" for cell in heads)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    table = f'<table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="wide">{table}</div>'


def _time(microseconds: int) -> str:
    return (_EPOCH + timedelta(microseconds=int(microseconds))).strftime("%Y-%m-%d %H:%M:%S")


def _span(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def _summary(data: ReportData, known: Column) -> str:
    stats = data.stats
    count, size, fpi = stats.totals()
    whole = size + fpi
    start, end = Lsn(stats.start_lsn or 0), Lsn(stats.end_lsn or 0)
    seconds = (known[-1, 1] - known[0, 1]) / 1e6 if len(known) else 0
    facts = [
        ("WAL", f"{start} to {end}"),
        ("records", f"{count:,}"),
        ("bytes of records", iec(whole)),
        ("full-page images", f"{100 * fpi / whole:.1f} %" if whole else "none"),
        ("commits", f"{data.outcomes.get('commit', 0):,}"),
        ("aborts", f"{data.outcomes.get('abort', 0):,}"),
        ("segments", f"{len(data.summaries):,}"),
    ]
    if seconds:
        facts += [
            ("from", f"{_time(known[0, 1])} UTC"),
            ("to", f"{_time(known[-1, 1])} UTC"),
            ("on average", f"{iec(whole / seconds)}/s"),
        ]
    cells = "".join(f"<div><dt>{escape(n)}</dt><dd>{escape(v)}</dd></div>" for n, v in facts)
    return f"<dl>{cells}</dl>"


def _problems(data: ReportData) -> str:
    """Return the sections of missing or damaged WAL, and of files left out without a loss."""
    fatal = [problem for problem in data.problems if problem.fatal]
    harmless = [problem for problem in data.problems if not problem.fatal]
    crcs = "every CRC is right" if data.crcs_checked else "CRCs were not checked"
    found = _findings(fatal) if fatal else f"<p>None: every record was read, {crcs}.</p>"
    sections = _section("Gaps and damage", found)
    if harmless:
        sections += _section("Left out (nothing is missing for it)", _findings(harmless))
    return sections


def _findings(problems: list[Problem]) -> str:
    rows = [
        (
            _file(problem.file),
            "" if problem.start_lsn is None else str(Lsn(problem.start_lsn)),
            "" if problem.end_lsn is None else str(Lsn(problem.end_lsn)),
            escape(problem.reason),
        )
        for problem in problems
    ]
    return _table(("file", "at", "read on at", "why"), rows, "texts")


def _file(path: str) -> str:
    return f'<span title="{escape(path)}">{escape(path.rpartition("/")[2])}</span>'


def _rate(data: ReportData, known: Column) -> str:
    if len(known) < 2 or known[0, 1] == known[-1, 1]:
        return _section("WAL rate", "<p>No two commits with times, so no rate.</p>")
    first, last = int(known[0, 1]), int(known[-1, 1])
    edges = np.linspace(first, last, BUCKETS + 1)
    seconds = (last - first) / 1e6 / BUCKETS
    # A point's bytes were written between the commit time of the point before and its own.
    running = np.cumsum(known[:, 2:], axis=0)
    images = np.diff(np.interp(edges, known[:, 1], running[:, 1])) / seconds
    others = np.diff(np.interp(edges, known[:, 1], running[:, 0] - running[:, 1])) / seconds
    bars = [
        Bar(
            (("other", float(other)), ("fpi", float(image))),
            f"{_time(int(edge))} UTC: {iec(other + image)}/s, "
            f"{100 * image / max(other + image, 1):.0f} % page images",
        )
        for edge, image, other in zip(edges, images, others, strict=False)
    ]
    marks = []
    for checkpoint in data.checkpoints:
        at = float(np.interp(checkpoint["redo_lsn"], known[:, 0], known[:, 1]))
        text = f"checkpoint, redo {Lsn(checkpoint['redo_lsn'])}, {_time(int(at))} UTC"
        marks.append(((at - first) / (last - first), text))
    labels = [(n / 4, _time(int(first + (last - first) * n / 4))) for n in range(5)]
    key = (
        '<p class="key"><span class="other"></span>records '
        '<span class="fpi"></span>full-page images '
        '<span class="mark"></span>redo point of a checkpoint</p>'
    )
    return _section(
        "WAL rate",
        f'{key}<div class="chart">{stacked(bars, marks, labels)}</div>',
        "By commit time, UTC.",
    )


def _resource_managers(data: ReportData) -> str:
    rows = [row for row in data.stats.by_record() if row.count]
    rows.sort(key=lambda row: -row.combined_size)
    whole = sum(row.combined_size for row in rows) or 1
    shown = [
        (
            escape(row.name),
            f"{row.count:,}",
            iec(row.record_size),
            iec(row.fpi_size),
            f"{100 * row.combined_size / whole:.1f} %",
            share((("other", row.record_size / whole), ("fpi", row.fpi_size / whole))),
        )
        for row in rows[:ROWS_MAX]
    ]
    heads = ("kind of record", "records", "without images", "images", "share", "")
    return _section("Kinds of records", _table(heads, shown), _cut(len(rows)))


def _cut(count: int) -> str:
    return f"The largest {ROWS_MAX} of {count:,}." if count > ROWS_MAX else ""


def _relations(data: ReportData, names: RelationNames) -> str:
    totals = data.relations.totals()
    whole = sum(sums["wal_bytes"] for _, sums in totals) or 1
    rows = []
    for relation, sums in totals[:ROWS_MAX]:
        updates = sums["updates"]
        hot = f"{100 * sums['hot_updates'] / updates:.0f} %" if updates else ""
        others = (sums["wal_bytes"] - sums["fpi_bytes"]) / whole
        rows.append(
            (
                escape(names.of(relation) or "/".join(map(str, relation))),
                f"{sums['records']:,}",
                iec(sums["wal_bytes"]),
                f"{100 * sums['fpi_bytes'] / max(sums['wal_bytes'], 1):.0f} %",
                f"{sums['inserts']:,}",
                f"{updates:,}",
                hot,
                f"{sums['deletes']:,}",
                share((("other", others), ("fpi", sums["fpi_bytes"] / whole))),
            )
        )
    heads = (
        "relation", "records", "WAL", "images", "inserts", "updates", "of them HOT", "deletes", "",
    )  # fmt: skip
    note = _cut(len(totals))
    if totals and not names:
        note += " Numbers are tablespace/database/relfilenode; --catalog and --dsn show names."
    return _section("Relations by WAL", _table(heads, rows), note.strip())


def _transactions(data: ReportData) -> str:
    largest = sorted(data.transactions.values(), key=lambda each: -each.wal_bytes)[:ROWS_MAX]
    rows = [
        (
            str(each.xid),
            iec(each.wal_bytes),
            f"{each.records:,}",
            str(Lsn(each.start_lsn)),
            iec(each.end_lsn - each.start_lsn),
            escape(each.outcome or "not ended here"),
            "" if each.time is None else _time(each.time),
        )
        for each in largest
    ]
    heads = ("xid", "its WAL", "records", "first record", "WAL over its span", "end", "at, UTC")
    return _section("Largest transactions", _table(heads, rows))


def _checkpoints(data: ReportData) -> str:
    rows, before = [], None
    for each in data.checkpoints:
        distance = "" if before is None else iec(each["redo_lsn"] - before["redo_lsn"])
        moment, apart = each["checkpoint_time"], ""
        if before is not None and moment and before["checkpoint_time"]:
            apart = _span((moment - before["checkpoint_time"]).total_seconds())
        shown = moment.strftime("%Y-%m-%d %H:%M:%S") if moment else ""
        lsns = (str(Lsn(each["checkpoint_lsn"])), str(Lsn(each["redo_lsn"])))
        rows.append((escape(each["kind"]), shown, apart, *lsns, distance))
        before = each
    heads = ("checkpoint", "started, UTC", "after", "record", "redo", "WAL since the redo before")
    note = _cut(len(rows)).replace("largest", "last")
    return _section("Checkpoints", _table(heads, rows[-ROWS_MAX:]), note)


def _advice(data: ReportData, known: Column) -> str:
    counted = int(sum(sums["fpi"] for _, sums in data.relations.totals()))
    _, records, images = data.stats.totals()
    if len(known) < 2 or not counted or not data.checkpoints:
        return _section(
            "Checkpoint spacing",
            "<p>Too little WAL: an estimate needs a checkpoint and page images.</p>",
        )
    redo = np.sort(np.array([each["redo_lsn"] for each in data.checkpoints], np.int64))
    times = (known[:, 0], known[:, 1] / 1e6)
    length = times[1][-1] - times[1][0]
    tried = tuple(seconds for seconds in SPACINGS_S if seconds < length)
    found = spacings(data.touches, redo, times, tried, images / counted)
    if not found:
        return _section("Checkpoint spacing", "<p>No block was changed.</p>")
    now = found[0]
    rows = [
        (
            "as it was" if each.seconds is None else f"every {_span(each.seconds)}",
            f"{each.images:,}",
            iec(each.image_bytes),
            iec(records + each.image_bytes),
            f"{100 * (each.image_bytes - now.image_bytes) / (records + now.image_bytes):+.0f} %",
        )
        for each in found
    ]
    heads = ("checkpoints", "images", "their size", "WAL", "change")
    note = (
        f"Counted from one block in 16, at the mean size of an image, {iec(images / counted)}. "
        f"Counted the same way, the real checkpoints give {now.image_bytes / images:.2f} times the "
        "images that there are; hint bits and backups add some that no spacing saves."
    )
    return _section("Checkpoint spacing", _verdict(found, records) + _table(heads, rows), note)


def _verdict(found: list[Spacing], records: int) -> str:
    now, least = found[0], min((each.image_bytes for each in found[1:]), default=None)
    if least is None or least >= now.image_bytes:
        return "<p>Checkpoints further apart would not have saved WAL here.</p>"
    # The shortest spacing that has most of the possible savings, since recovery time is the price.
    enough = now.image_bytes - WORTHWHILE * (now.image_bytes - least)
    best = next(each for each in found[1:] if each.image_bytes <= enough)
    saved = (now.image_bytes - best.image_bytes) / (records + now.image_bytes)
    return (
        f"<p>Checkpoints every {_span(best.seconds or 0)} would have saved about "
        f"<strong>{100 * saved:.0f} %</strong> of this WAL: checkpoint_timeout = "
        f"'{(best.seconds or 0) // 60}min', and a max_wal_size that lets it come to that. Recovery "
        "after a crash then replays more.</p>"
    )
