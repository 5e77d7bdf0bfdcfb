"""Edits by syntax: comments, formatting, line numbers and the file do not matter.

    place_of("Acceptor.on_append")                the one definition of that name in the packages
    edited(source, place.names, old, new)         its file with `old` replaced inside it

A definition is a module, a class or a function, also one inside another. Its full name begins with
the module's: walkeeper_safekeeper.consensus.acceptor.Acceptor.on_append. Any tail of that names it
as long as no other definition has the same tail.

`old` and `new` are source. If both are expressions, the expression is replaced. Otherwise `old` is
one statement or several in a row, and `new` takes their place; an empty `new` removes them.
`name=value` is a statement or a keyword argument of a call. All are compared as syntax trees.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from textwrap import dedent
from typing import Any, TypeAlias

from tests.support.folders import ROOT

PACKAGES = ("common", "proposer", "safekeeper")
# A name that these do not define may be of the following ones.
OTHERS = ("admin", "analysis", "cli", "pager", "restore", "spark")
# Whole, for the tests that mutants turn red.
SOURCES = (*PACKAGES, *OTHERS, "fastpath", "lab")

Definition: TypeAlias = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class DoesNotFit(Exception):
    """The source has changed: the mutant has to be written again."""


@dataclass(frozen=True, slots=True)
class Place:
    """A definition: its file, relative to the root, and the names that lead to it there."""

    file: str
    names: tuple[str, ...]


@cache
def place_of(where: str) -> Place:
    """Return the definition with this name. DoesNotFit: there is none, or more than one."""
    found = _places(PACKAGES).get(where) or _places(OTHERS).get(where, [])
    if len(found) != 1:
        shown = ", ".join(place.file for place in found) or "nowhere"
        raise DoesNotFit(f"{where} is defined {len(found)} times: {shown}")
    return found[0]


@cache
def _places(packages: tuple[str, ...]) -> Mapping[str, list[Place]]:
    """Return all definitions by each tail of their names."""
    places = defaultdict(list)
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            module = path.relative_to(ROOT / package).with_suffix("").parts
            file = str(path.relative_to(ROOT))
            for names, _ in definitions(ast.parse(path.read_text())):
                full = (*module, *names)
                for first in range(len(full)):
                    places[".".join(full[first:])].append(Place(file, names))
    return places


def definitions(tree: ast.Module) -> Iterator[tuple[tuple[str, ...], Definition]]:
    """Yield the module itself, then what is defined in it, with the names that lead there."""
    yield (), tree
    waiting: list[tuple[tuple[str, ...], ast.AST]] = [((), tree)]
    while waiting:
        names, node = waiting.pop()
        for child in ast.iter_child_nodes(node):
            inner = names
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                inner = (*names, child.name)
                yield inner, child
            waiting.append((inner, child))


def edited(source: str, names: tuple[str, ...], old: str, new: str) -> str:
    """Return the source of a file after the edit. DoesNotFit: `old` is not there exactly once."""
    tree = ast.parse(source)
    scopes = [node for found, node in definitions(tree) if found == names]
    assert len(scopes) == 1, f"{names=} {len(scopes)=}"
    before, after = _parsed(old), _parsed(new)
    if _is_expression(before) and _is_expression(after):
        _replace_expression(scopes[0], before[0], after[0])
    else:
        _replace_statements(scopes[0], before, after)
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def _parsed(text: str) -> list[ast.stmt]:
    return ast.parse(dedent(text)).body


def _is_expression(statements: list[ast.stmt]) -> bool:
    return len(statements) == 1 and isinstance(statements[0], ast.Expr)


def _replace_expression(scope: ast.AST, old: ast.stmt, new: ast.stmt) -> None:
    assert isinstance(old, ast.Expr) and isinstance(new, ast.Expr)
    wanted = ast.dump(old.value)
    found: list[tuple[Any, Any]] = []
    for node in ast.walk(scope):
        for name, value in ast.iter_fields(node):
            if isinstance(value, list):
                found += [(value, i) for i, one in enumerate(value) if _is(one, wanted)]
            elif _is(value, wanted):
                found.append((vars(node), name))
    _only(found, old)
    container, key = found[0]
    container[key] = new.value


def _is(node: object, wanted: str) -> bool:
    return isinstance(node, ast.expr) and ast.dump(node) == wanted


def _replace_statements(scope: ast.AST, old: list[ast.stmt], new: list[ast.stmt]) -> None:
    assert old, "an edit that inserts names the statement beside it"
    wanted = [ast.dump(statement) for statement in old]
    found: list[tuple[list[ast.stmt], int]] = []
    for node in ast.walk(scope):
        for body in _bodies(node):
            dumps = [ast.dump(statement) for statement in body]
            starts = range(len(dumps) - len(wanted) + 1)
            found += [(body, i) for i in starts if dumps[i : i + len(wanted)] == wanted]
    keywords = _keywords_like(scope, old)
    _only([*found, *keywords], *old)
    if keywords:
        arguments, place = keywords[0]
        arguments[place : place + 1] = [_as_keyword(statement) for statement in new]
        return
    body, first = found[0]
    body[first : first + len(old)] = new
    if not body:
        body.append(ast.Pass())


def _bodies(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for _, value in ast.iter_fields(node):
        if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
            yield value


def _keywords_like(scope: ast.AST, old: list[ast.stmt]) -> list[tuple[list[ast.keyword], int]]:
    if len(old) != 1 or not _is_keyword(old[0]):
        return []
    wanted = ast.dump(_as_keyword(old[0]))
    calls = (node for node in ast.walk(scope) if isinstance(node, ast.Call))
    return [
        (call.keywords, place)
        for call in calls
        for place, keyword in enumerate(call.keywords)
        if ast.dump(keyword) == wanted
    ]


def _is_keyword(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return False
    return isinstance(statement.targets[0], ast.Name)


def _as_keyword(statement: ast.stmt) -> ast.keyword:
    assert isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
    return ast.keyword(statement.targets[0].id, statement.value)


def _only(found: list[Any], *old: ast.stmt) -> None:
    if len(found) != 1:
        text = "\n".join(map(ast.unparse, old))
        raise DoesNotFit(f"{len(found)} times: {text!r}")
