"""A module's name says which one is meant: a second one of the same name needs a reason here.

The names in prose are those of today.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from tests.support.folders import PRODUCT, ROOT
from walkeeper_cli.commands.history import command as history
from walkeeper_cli.program import COMMANDS

# A module of the product has a name of its own. Only a command's module, in the folder of its
# group, may share its name with the library that performs the command.
COMMAND_FOLDERS: dict[str, Iterable[str]] = {
    "cli/walkeeper_cli/commands": COMMANDS,
    "cli/walkeeper_cli/history": history.commands,
}
# A module in one of these folders of tests may have the name of the part that it is about.
NAMED_AFTER_ITS_PART = {
    "tests/proof/fuzz": "a target of the fuzzer, and the module under attack",
    "tests/proof/mutants": "the mutants of a rule, and the module that has the rule",
    "tests/proof/sim": "a simulated part, and the real one",
}
MAY_OCCUR_TWICE = {
    "benchmark": "a benchmark for each package, run as `python -m tests.PACKAGE.benchmark`",
    "conftest": "pytest's name",
}
PYTHONS_OWN = ("__init__", "__main__")
FILES_OF_AN_EXAMPLE = ("click.py", "read.py", "script.py", "test_x.py", "test_z.py")
NAME = re.compile(r"`([a-z_][a-z_0-9]{3,})`")
NOT_OURS = frozenset(("kubectl", "start_tls", "wal_005"))  # a program, asyncio, WAL-G
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
MENTION = re.compile(r"(?<![\w*/.])((?:[a-z_]\w*/)*[a-z_]\w*\.py)\b")


def modules() -> list[PurePosixPath]:
    paths = [p for folder in (*PRODUCT, "tests") for p in (ROOT / folder).rglob("*.py")]
    return [PurePosixPath(path.relative_to(ROOT)) for path in sorted(paths)]


def has_a_name_of_another(path: PurePosixPath) -> bool:
    """Return True if a convention gives the module the name of a command or of another part."""
    folder = str(path.parent)
    commands = {name.replace("-", "_") for name in COMMAND_FOLDERS.get(folder, ())}
    return folder in NAMED_AFTER_ITS_PART or path.stem in commands


def doubles(paths: Iterable[PurePosixPath]) -> dict[str, list[str]]:
    """Return each name that several modules have, although no reason is given for it."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        if path.stem not in PYTHONS_OWN and not has_a_name_of_another(path):
            places[path.stem].append(str(path))
    return {
        name: found
        for name, found in places.items()
        if len(found) > 1 and name not in MAY_OCCUR_TWICE
    }


def test_a_module_name_that_occurs_twice_has_a_reason() -> None:
    assert not doubles(modules())


def test_each_reason_is_still_needed() -> None:
    names = [path.stem for path in modules()]
    assert not [name for name in MAY_OCCUR_TWICE if names.count(name) < 2]
    folders = (*NAMED_AFTER_ITS_PART, *COMMAND_FOLDERS)
    assert not [folder for folder in folders if not (ROOT / folder).is_dir()]


def test_a_second_module_of_a_name_is_seen() -> None:
    known = PurePosixPath("common/walkeeper_common/quorum.py")
    assert doubles([known, PurePosixPath("pager/walkeeper_pager/quorum.py")]).keys() == {"quorum"}
    assert not doubles([known, PurePosixPath("tests/proof/mutants/quorum.py")])


def test_a_command_alone_shares_its_name_with_the_library() -> None:
    folder = PurePosixPath("cli/walkeeper_cli/commands")
    attach, quorum = (PurePosixPath(f"x/walkeeper_x/{name}.py") for name in ("attach", "quorum"))
    assert not doubles([attach, folder / "attach.py"])
    assert doubles([quorum, folder / "quorum.py"]).keys() == {"quorum"}
    find = PurePosixPath("analysis/walkeeper_history/find.py")
    assert not doubles([find, PurePosixPath("cli/walkeeper_cli/history/find.py")])


def mentions() -> Iterable[tuple[str, str]]:
    """Yield the file and the name of each Python file that a text of this project mentions."""
    texts = [ROOT / path for path in modules()]
    texts += [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "Makefile"]
    for path in texts:
        if path != Path(__file__):
            for name in MENTION.findall(path.read_text()):
                yield str(path.relative_to(ROOT)), name


def test_a_file_that_a_text_mentions_exists() -> None:
    known = [f"/{path}" for path in modules()]
    known += [f"/{path}" for folder in (".ci", "docker") for path in (ROOT / folder).rglob("*.py")]
    gone = {
        (file, name)
        for file, name in mentions()
        if PurePosixPath(name).name not in FILES_OF_AN_EXAMPLE
        and not any(path.endswith(f"/{name}") for path in known)
    }
    assert not gone, sorted(gone)


def test_a_name_that_a_docstring_has_in_backticks_exists() -> None:
    """A name outlives a rename in prose alone: no other check reads a docstring."""
    named: set[tuple[str, str]] = set()
    known: set[str] = {part for path in modules() for part in (*path.parts, path.stem)}
    for path in modules():
        if path.parts[0] != "tests":
            text = (ROOT / path).read_text()
            docstrings = [
                found for node in ast.walk(ast.parse(text))
                if isinstance(node, DOCUMENTED) and (found := ast.get_docstring(node, clean=False))
            ]  # fmt: skip
            named |= {(str(path), name) for each in docstrings for name in NAME.findall(each)}
            for each in docstrings:
                text = text.replace(each, "")
            known.update(re.findall(r"\w+", text))
    gone = sorted((path, name) for path, name in named if name not in known | NOT_OURS)
    assert not gone, gone


ENTRY = re.compile(r"^ *((?:[a-z_]\w*/?, )*[a-z_]\w*/?)  +\S", re.MULTILINE)


def missing_entries(docstring: str, folder: Path) -> list[str]:
    """Return the modules and rooms in the table of a package's docstring that do not exist."""
    names = [name for entry in ENTRY.findall(docstring) for name in entry.split(", ")]
    there = {path.stem for path in folder.iterdir() if path.suffix in (".py", ".pyx")}
    rooms = {f"{path.name}/" for path in folder.iterdir() if path.is_dir()}
    return [name for name in names if name not in there | rooms]


def test_a_packages_docstring_names_its_own_modules() -> None:
    missing, entries = {}, 0
    for path in (p for folder in PRODUCT for p in (ROOT / folder).rglob("__init__.py")):
        docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
        entries += len(ENTRY.findall(docstring))
        if found := missing_entries(docstring, path.parent):
            missing[str(path.parent.relative_to(ROOT))] = found
    assert not missing
    assert entries > 60, "the tables are found"


def test_a_module_that_has_left_its_package_is_seen() -> None:
    folder = ROOT / "analysis/walkeeper_replay"
    assert missing_entries("x\n\n    table_at, undo    for people\n    redo/   pages", folder) == [
        "undo"
    ]
