"""The operator's library can be awaited: no event loop begins in it, and no coroutine blocks one.

A caller with a loop of its own, such as an operator of Kubernetes, gets RuntimeError from
`asyncio.run`. A blocking call in a coroutine stops all its other tasks. So the command line alone
starts loops, and a coroutine leaves blocking work to `asyncio.to_thread`.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

from tests.support.folders import PRODUCT, ROOT
from walkeeper_admin import archive_repair, closed_start, create, members, replace, status
from walkeeper_admin.check import all_checks
from walkeeper_admin.primary import attach, detach
from walkeeper_admin.switchover import switch_over

LIBRARY = "walkeeper_admin"
WITHOUT_LOOPS = (LIBRARY, "walkeeper_proposer", "walkeeper_safekeeper")
# restore, history, the lab and Spark are programs, or libraries for callers without a loop, and
# the daemons begin theirs in common.
STARTS_A_LOOP = (
    "asyncio.run",
    "asyncio.Runner",
    "asyncio.new_event_loop",
    "uvloop.run",
    "uvloop.new_event_loop",
)
BLOCKS = (
    "open",
    "input",
    "time.sleep",
    "os.fsync",
    "os.listdir",
    "os.makedirs",
    "os.mkdir",
    "os.open",
    "os.remove",
    "os.rename",
    "os.replace",
    "os.scandir",
    "os.stat",
    "os.system",
    "os.unlink",
    "psycopg.connect",
    "shutil.copy",
    "shutil.copytree",
    "shutil.move",
    "shutil.rmtree",
    "socket.create_connection",
    "socket.getaddrinfo",
    "subprocess.call",
    "subprocess.check_call",
    "subprocess.check_output",
    "subprocess.run",
    "tempfile.TemporaryDirectory",
    "tempfile.mkdtemp",
    "urllib.request.urlopen",
    "walkeeper_archive.archive.open_archive",
    "walkeeper_archive.verification.survey",
    "walkeeper_archive.verification.verify",
    *STARTS_A_LOOP,
)
METHODS_THAT_BLOCK = ("read_bytes", "read_text", "run_until_complete", "write_bytes", "write_text")


@dataclass
class Function:
    """A function with the full names that its body calls, without those of inner functions."""

    name: str
    is_coroutine: bool
    calls: list[tuple[str, int]] = field(default_factory=list)


def functions_of(module: str, source: str) -> Iterator[Function]:
    """Yield the functions of a module, and one for its top level, which is called at the import."""
    tree = ast.parse(source)
    meant = {node.name: f"{module}.{node.name}" for node in tree.body if hasattr(node, "name")}
    for node in ast.walk(tree):  # an import inside a function counts as well
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                meant[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    pending: list[tuple[ast.AST, Function]] = [(tree, Function(f"{module}.<top>", False))]
    while pending:
        node, function = pending.pop()
        yield function
        within = list(ast.iter_child_nodes(node))
        while within:
            child = within.pop()
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                is_coroutine = isinstance(child, ast.AsyncFunctionDef)
                pending.append((child, Function(f"{module}.{child.name}", is_coroutine)))
                continue
            if isinstance(child, ast.Call):
                text = ast.unparse(child.func)
                name, dot, rest = text.partition(".")
                function.calls.append((meant.get(name, name) + dot + rest, child.lineno))
            within += ast.iter_child_nodes(child)


@cache
def product() -> Mapping[str, list[Function]]:
    """Return the functions of each module of the product."""
    found: dict[str, list[Function]] = {}
    for folder in PRODUCT:
        for file in sorted((ROOT / folder).rglob("*.py")):
            parts = file.relative_to(ROOT / folder).with_suffix("").parts
            module = ".".join(parts).removesuffix(".__init__")
            found[module] = list(functions_of(module, file.read_text()))
    return found


def does_block(call: str) -> bool:
    return call in BLOCKS or call.rpartition(".")[2] in METHODS_THAT_BLOCK


def blocking(modules: Mapping[str, list[Function]]) -> set[str]:
    """Return the functions that block, directly or by another one; no coroutine is among them."""
    plain = [f for found in modules.values() for f in found if not f.is_coroutine]
    known: set[str] = set()
    while True:
        more = {
            f.name for f in plain if any(does_block(call) or call in known for call, _ in f.calls)
        }
        if more <= known:
            return known
        known |= more


def stops_of(modules: Mapping[str, list[Function]], package: str) -> list[str]:
    """Return each blocking call in a coroutine of the package."""
    known = blocking(modules)
    return [
        f"{function.name}:{line} calls {call}"
        for module, functions in modules.items()
        if module.partition(".")[0] == package
        for function in functions
        if function.is_coroutine
        for call, line in function.calls
        if does_block(call) or call in known
    ]


def test_no_library_starts_an_event_loop() -> None:
    found = [
        f"{function.name}:{line} calls {call}"
        for module, functions in product().items()
        if module.partition(".")[0] in WITHOUT_LOOPS
        for function in functions
        for call, line in function.calls
        if call in STARTS_A_LOOP or call.endswith(".run_until_complete")
    ]
    assert not found


def test_no_coroutine_of_the_operators_library_blocks_its_loop() -> None:
    assert not stops_of(product(), LIBRARY)


def test_what_the_library_promises_can_be_awaited() -> None:
    promised = (
        archive_repair.repair_all,
        attach.attach,
        closed_start.open_by_hand,
        closed_start.start_closed,
        create.create,
        detach.detach,
        members.change,
        replace.replace,
        status.gather,
        switch_over,
    )
    assert [each for each in promised if not inspect.iscoroutinefunction(each)] == []
    assert inspect.isasyncgenfunction(all_checks.run)


SAMPLE = """
import asyncio, subprocess, time
from pathlib import Path
from elsewhere import slow as other

def pause():
    time.sleep(1)

def indirect():
    pause()

async def good():
    await asyncio.to_thread(indirect)
    await asyncio.sleep(1)

async def bad():
    indirect()
    other()

async def worse(path):
    subprocess.run(["true"])
    return path.read_text()
"""
ELSEWHERE = "def slow():\n    with open('x') as file:\n        return file.read()\n"


def test_a_blocking_call_is_seen_through_other_functions() -> None:
    modules = {
        name: list(functions_of(name, text))
        for name, text in (("sample", SAMPLE), ("elsewhere", ELSEWHERE))
    }
    found = {each.partition(":")[0] for each in stops_of(modules, "sample")}
    assert found == {"sample.bad", "sample.worse"}
    assert len(stops_of(modules, "sample")) == 4
