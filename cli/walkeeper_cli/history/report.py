"""`walkeeper history report`: a page with names from a server, written whole or not at all."""

from __future__ import annotations

from walkeeper_cli.history.archive_reading import Archive
from walkeeper_cli.history.wal_options import NameSource
from walkeeper_history.report.data import ReportData, gather
from walkeeper_history.report.html_page import render
from walkeeper_history.whole_file import whole_file


def write(archive: Archive, output: str, named: NameSource) -> None:
    """Write the report in one pass over the archive.

    Get the names first, since that step can fail quickly.
    """
    names = archive.names(named)
    data = ReportData(crcs_checked=archive.options.check_crc)
    for part, _ in archive.sweep(gather):
        data.add(part)
    data.problems = archive.problems
    page = render(data, title=f"WAL history of {archive.source.path}", names=names)
    with whole_file(output, encoding="utf-8") as file:
        file.write(page)
