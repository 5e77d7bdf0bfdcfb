"""No circle of imports in the packages, the tests and the proofs, those for types included."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection

import grimp

from tests.support.folders import ROOT


def circles_of(modules: Collection[str], imports: Callable[[str], set[str]]) -> list[list[str]]:
    """Return each set of two modules or more that reach each other (Tarjan's components)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        path.append(module)
        for other in sorted(imports(module)):
            if other not in order:
                visit(other)
            if other in path:
                lowest[module] = min(lowest[module], lowest[other])
        if lowest[module] == order[module]:
            at = path.index(module)
            if len(path) > at + 1:
                found.append(sorted(path[at:]))
            del path[at:]

    for module in sorted(modules):
        if module not in order:
            visit(module)
    return found


def test_no_modules_import_each_other_in_a_circle() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        packages = tomllib.load(file)["tool"]["importlinter"]["root_packages"]
    graph = grimp.build_graph(
        *packages, "tests", cache_dir=None, exclude_type_checking_imports=False
    )
    assert not circles_of(graph.modules, graph.find_modules_directly_imported_by)


def test_a_circle_is_found_and_a_fork_is_none() -> None:
    fork = {"a": {"b", "c"}, "b": {"d"}, "c": {"d"}, "d": set[str]()}
    assert not circles_of(fork, fork.__getitem__)
    circle = {**fork, "d": {"b"}, "e": {"a"}}
    assert circles_of(circle, circle.__getitem__) == [["b", "d"]]
