"""`walkeeper history report`: gathered, named with a server's help, written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from walkeeper_cli.history.options import NameSource
from walkeeper_cli.history.reading import Archive
from walkeeper_history.errors import HistoryError
from walkeeper_history.report.data import ReportData, gather
from walkeeper_history.report.page import render


def write(archive: Archive, output: str, named: NameSource) -> None:
    """One pass over the archive; the names are asked for first, since that can fail quickly."""
    names = archive.names(named)
    data = ReportData(crcs_checked=archive.options.check_crc)
    for part, _ in archive.sweep(gather):
        data.add(part)
    data.problems = archive.problems
    page = render(data, title=f"WAL history of {archive.source.path}", names=names)
    path = Path(output)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(page, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise HistoryError(f"{output}: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)
