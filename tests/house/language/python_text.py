"""Docstrings, comments and operator messages of a Python file.

    passages(source, messages=...) -> passages          pure

Strings come from ast, comments from tokenize. Messages are the strings of a raise, of a logger's
call, of what writes to the terminal, and `help=` of an option. Tests have no operator, so that the
caller leaves their messages out.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import tokenize
from collections.abc import Iterator

from tests.house.language.passages import Kind, Passage, paragraphs

LOGGERS = ("logger", "logging", "log")
LOG_METHODS = ("debug", "info", "warning", "error", "critical", "exception", "log")
WRITERS = ("echo", "secho", "say", "fail", "warn", "failure")
ERROR = re.compile(r".*(Error|Refused|Exception|Failed)$")
HELP_KEYWORDS = ("help", "short_help", "epilog")
# The summary of a property or a fixture names a value, and a test's is a claim.
VALUES = ("property", "cached_property", "setter", "fixture")
DIRECTIVE = re.compile(r"#(!|:|\s*(noqa|type:|pragma|fmt:|ruff:|mypy:|mutant:|isort:|-\*-))")
# click leaves a paragraph with this mark as it is.
VERBATIM = "\b"
Function = ast.FunctionDef | ast.AsyncFunctionDef


def passages(source: str, *, messages: bool) -> list[Passage]:
    """Return the passages of a Python source, in the order of their lines."""
    tree = ast.parse(source)
    found = [*_docstrings(tree), *_comments(source)]
    if messages:
        found += _messages(tree)
    return sorted(found, key=lambda passage: passage.line)


def _docstrings(tree: ast.AST) -> Iterator[Passage]:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for place, child in enumerate(body if isinstance(body, list) else []):
            if (
                isinstance(child, ast.Expr)
                and isinstance(child.value, ast.Constant)
                and isinstance(child.value.value, str)
            ):
                summary = Kind.PROSE
                if place == 0 and isinstance(node, Function) and not _names_a_value(node):
                    summary = Kind.DOCSTRING
                yield from _of_docstring(child.value.value, child.lineno, summary)


def _names_a_value(function: Function) -> bool:
    decorators = [ast.unparse(decorator) for decorator in function.decorator_list]
    return function.name.startswith("test_") or any(
        decorator.split("(")[0].split(".")[-1] in VALUES for decorator in decorators
    )


def _of_docstring(text: str, line: int, summary: Kind) -> Iterator[Passage]:
    kind = summary
    blank = len(text) - len(text.lstrip("\n"))
    lines = inspect.cleandoc(text).splitlines()
    numbered = list(enumerate(_without_verbatim(lines), line + blank))
    for passage in paragraphs(numbered, kind=Kind.PROSE):
        yield Passage(kind, passage.line, passage.text)
        kind = Kind.PROSE


def _without_verbatim(lines: list[str]) -> Iterator[str]:
    verbatim = False
    for line in lines:
        verbatim = line.strip(" ") == VERBATIM or (verbatim and bool(line.strip()))
        yield "" if verbatim else line


def _comments(source: str) -> Iterator[Passage]:
    block: list[tuple[int, str]] = []
    column = -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or DIRECTIVE.match(token.string):
            continue
        line, begin = token.start
        alone = not token.line[:begin].strip()
        text = token.string[1:].removeprefix(" ")
        follows = block and block[-1][0] == line - 1 and column == begin and alone
        if not follows:
            yield from paragraphs(block, kind=Kind.COMMENT)
            block = []
        block.append((line, text))
        column = begin
    yield from paragraphs(block, kind=Kind.COMMENT)


def _messages(tree: ast.AST) -> Iterator[Passage]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        if _is_message(node.func):
            values = [*node.args, *(word.value for word in node.keywords)]
            yield from _strings(values, Kind.MESSAGE)
        yield from _strings(
            [word.value for word in node.keywords if word.arg in HELP_KEYWORDS], Kind.PROSE
        )


def _is_message(function: ast.expr) -> bool:
    name = ast.unparse(function)
    owner, _, last = name.rpartition(".")
    if last in LOG_METHODS:
        return owner.split(".")[-1].lstrip("_") in LOGGERS
    return last.lstrip("_") in WRITERS or ERROR.match(last) is not None


def _strings(values: list[ast.expr], kind: Kind) -> Iterator[Passage]:
    for value in values:
        text = _text(value)
        if text is not None and " " in text.strip():
            lines = ((value.lineno, line) for line in text.splitlines())
            yield from paragraphs(lines, kind=kind)


def _text(value: ast.expr) -> str | None:
    """Return the string that an expression builds, with {} for what is filled in."""
    match value:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text(part) or "" for part in parts)
        case ast.FormattedValue():
            return "{}"
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            texts = [_text(left), _text(right)]
            return None if texts == [None, None] else "".join(text or "{}" for text in texts)
        case ast.BinOp(left=left, op=ast.Mod()):
            return _text(left)
        case _:
            return None
