"""A row of an index counts only for the file that it was made of."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from walkeeper_history import segment_index
from walkeeper_history.segment_index import ProvenIndex

NAME = "000000010000000000000001"


@pytest.mark.parametrize(("proof", "row"), [(b"of this file", 0), (b"of another file", None)])
def test_a_row_without_the_proof_of_its_file_does_not_count(
    monkeypatch: pytest.MonkeyPatch, proof: bytes, row: int | None
) -> None:
    monkeypatch.setattr(segment_index, "proof_of", lambda files, path, last: b"of this file")
    table = pa.table({"segment": [NAME], "proof": [proof], "last_lsn": [None]})
    index = ProvenIndex(cast(Any, None), table)
    assert index.row(cast(Any, SimpleNamespace(name=NAME, path=NAME, first_lsn=0))) == row
