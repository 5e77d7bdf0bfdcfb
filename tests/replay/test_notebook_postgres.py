"""The notebook of the documentation: it runs from an archive to the answers, as it is written."""

from __future__ import annotations

import ast
import json
from importlib import import_module
from itertools import chain
from typing import Any

import pytest

from tests.house.language import markdown_text
from tests.house.language.rules import violations
from tests.support.folders import ROOT

NOTEBOOK = ROOT / "docs" / "notebooks" / "history.ipynb"
CELL_S = 600


def cells(kind: str) -> list[str]:
    """Return the text of each cell of a kind."""
    found = json.loads(NOTEBOOK.read_text())["cells"]
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == kind]


def test_the_notebook_compares_its_answers_and_keeps_its_outputs() -> None:
    trees = [
        compile(text, "cell", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        for text in cells("code")
    ]
    nodes = list(chain.from_iterable(ast.walk(tree) for tree in trees))
    assert sum(isinstance(node, ast.Assert) for node in nodes) >= 5
    found = json.loads(NOTEBOOK.read_text())["cells"]
    outputs = [each for cell in found for each in cell.get("outputs", ())]
    assert len(outputs) >= 8
    assert not [each for each in outputs if each["output_type"] == "error"]


def test_the_notebook_is_written_in_the_language_of_the_documents() -> None:
    passages = chain.from_iterable(map(markdown_text.passages, cells("markdown")))
    assert not [str(found) for each in passages for found in violations(each.text, each.kind)]


@pytest.mark.soak
@pytest.mark.postgres
@pytest.mark.filterwarnings("default")
def test_the_notebook_runs_as_it_is_written() -> None:
    """Its own assertions compare each answer with the server's."""
    from nbclient import NotebookClient

    nbformat: Any = import_module("nbformat")  # without types
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=CELL_S, kernel_name="python3").execute()
