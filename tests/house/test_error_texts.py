"""The text of an error is for people: no program decides by it. Facts are attributes or classes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.support.folders import PRODUCT, ROOT

# `replace` and `split` are not among them: they make one line of a text for people.
PARSERS = (
    "endswith", "find", "fullmatch", "index", "match", "partition", "removeprefix", "removesuffix",
    "rpartition", "search", "startswith",
)  # fmt: skip


def is_text_of(node: ast.AST, error: str) -> bool:
    """Return True for `str(error)`, `error.args` or a method's result on either."""
    if isinstance(node, ast.Attribute | ast.Subscript):
        return is_text_of(node.value, error) or (
            isinstance(node, ast.Attribute)
            and node.attr == "args"
            and isinstance(node.value, ast.Name)
            and node.value.id == error
        )
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute):
        return is_text_of(node.func.value, error)
    is_str = isinstance(node.func, ast.Name) and node.func.id in ("str", "repr")
    return is_str and any(isinstance(a, ast.Name) and a.id == error for a in node.args)


def parses(node: ast.AST, error: str) -> bool:
    if isinstance(node, ast.Compare):
        decides = any(isinstance(op, ast.In | ast.NotIn) for op in node.ops)
        return decides and any(is_text_of(each, error) for each in node.comparators)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        given = [node.func.value, *node.args]
        return node.func.attr in PARSERS and any(is_text_of(each, error) for each in given)
    return False


def parsed_texts(tree: ast.AST) -> Iterator[int]:
    """Yield the line of each look into the text of a caught error."""
    for handler in ast.walk(tree):
        if isinstance(handler, ast.ExceptHandler) and handler.name:
            for node in ast.walk(handler):
                if parses(node, handler.name):
                    yield node.lineno  # type: ignore[attr-defined]


def test_no_program_decides_by_the_text_of_an_error() -> None:
    files = [path for folder in PRODUCT for path in sorted((ROOT / folder).rglob("*.py"))]
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in files
        for line in parsed_texts(ast.parse(path.read_text()))
    ]
    assert not found, f"make the fact an attribute or a class of the error: {found}"


@pytest.mark.parametrize(
    "use",
    [
        'x = "already exists" in str(error)',
        'x = str(error).removeprefix("--dsn").lstrip()',
        'x = str(error).strip().startswith("FATAL")',
        'x = re.search("no .* entry", str(error))',
        'x = error.args[0].startswith("no")',
    ],
)
def test_a_look_into_the_text_is_seen(use: str) -> None:
    tree = ast.parse(f"try:\n    do()\nexcept ValueError as error:\n    {use}\n")
    assert list(parsed_texts(tree)) == [4]


def test_a_text_that_is_shown_is_no_look_into_it() -> None:
    shown = 'print(f"{name}: {error}", str(error), error.sqlstate in LASTING)'
    tree = ast.parse(f"try:\n    do()\nexcept ValueError as error:\n    {shown}\n")
    assert not list(parsed_texts(tree))
