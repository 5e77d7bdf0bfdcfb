"""Install the wheel in dist/ with each extra alone, on each Python that can be had.

    python3 .ci/wheels.py [--trees build/deb] [--extras none,demo,…] [--pythons PATH,PATH]

Each extra gets an environment of its own. There every library that the extra names is imported, and
`walkeeper --help` runs. The Pythons are this machine's and, as root, those of Debian's trees from
`make deb`. A wheel with compiled parts fits one Python; the others build the sdist.

The extra `test` is left out: each run of the gate installs it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
LEFT_OUT = ("test",)
NONE = "none"
TREES = {"3.11": "bookworm", "3.13": "trixie"}
# pip of a tree uses this machine's index and certificates.
LENT = ("index-url", "cert", "client-cert", "trusted-host", "proxy")
CERTIFICATES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
# argv: the distributions that an extra names. Each has modules, and each module is imported.
IMPORTS = """
import importlib, importlib.metadata as metadata, re, sys
wanted = {re.sub("[-_.]+", "-", name).lower() for name in sys.argv[1:]}
found = set()
for module, names in metadata.packages_distributions().items():
    owners = {re.sub("[-_.]+", "-", name).lower() for name in names} & wanted
    if owners and module.isidentifier() and not module.startswith("_"):
        importlib.import_module(module)
        found |= owners
missing = {name for name in wanted if not metadata.distribution(name).files}
sys.exit(f"no module of {sorted(wanted - found)}" if wanted - found or missing else 0)
"""


class Place(NamedTuple):
    """A root directory with a Python in it."""

    root: Path
    python: str

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command there, without what could lend the checkout to another Python."""
        mine = ("PYTHON", "VIRTUAL_ENV", "WALKEEPER_", "MAKE", "MFLAGS")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(mine)}
        if is_tree := self.root != Path("/"):
            kept |= {"HOME": "/root", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
        prefix = ("chroot", str(self.root)) if is_tree else ()
        words = (*prefix, *command)
        done = subprocess.run(words, cwd="/", env=kept, capture_output=True, text=True)
        if check and done.returncode:
            sys.exit(f"{done.stdout}{done.stderr}wheels: failed: {' '.join(words)}; see above")
        return done

    def outside(self, path: str) -> Path:
        return self.root / path.lstrip("/")


def tell(text: str) -> None:
    sys.stdout.write(f"wheels: {text}\n")
    sys.stdout.flush()


def places(pythons: list[str], trees: Path) -> Iterator[Place]:
    yield from (Place(Path("/"), python) for python in pythons)
    if os.geteuid():
        tell("the Pythons of Debian's trees need root; they are left out")
        return
    for version, suite in TREES.items():
        root = trees / suite / "build"
        if version == f"{sys.version_info[0]}.{sys.version_info[1]}":
            continue
        if not root.is_dir():
            tell(f"Python {version} is left out: no tree {root}; run `make deb` first")
            continue
        lend_index(root)
        yield Place(root, f"/usr/bin/python{version}")


def lend_index(root: Path) -> None:
    """Give a tree this machine's settings of pip, and the certificates that they name."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    settings = dict(re.findall(r"^(?:global|:env:)\.([\w-]+)='(.*)'$", found, re.MULTILINE))
    lines = [f"{name} = {settings[name]}" for name in LENT if name in settings]
    (root / "etc/pip.conf").write_text("\n".join(["[global]", *lines, ""]))
    for path in {settings.get("cert", ""), *(os.environ.get(name, "") for name in CERTIFICATES)}:
        if path and Path(path).is_file():
            target = root / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)


@contextmanager
def folder(place: Place) -> Iterator[str]:
    """Give a new folder that has dist/ and constraints.txt, as its path in the place."""
    with tempfile.TemporaryDirectory(prefix="walkeeper_wheels_", dir=place.outside("/tmp")) as made:
        for path in (*DIST.glob("*.whl"), *DIST.glob("*.tar.gz"), ROOT / "constraints.txt"):
            shutil.copy(path, made)
        yield f"/tmp/{Path(made).name}"


def fitting(place: Place, pip: tuple[str, ...], inside: str) -> str:
    """Return the wheel that this Python takes, else the sdist."""
    for wheel in sorted(place.outside(inside).glob("*.whl")):
        path = f"{inside}/{wheel.name}"
        if not place.run(*pip, "install", "--dry-run", "--no-deps", path, check=False).returncode:
            return path
    (sdist,) = place.outside(inside).glob("*.tar.gz")
    return f"{inside}/{sdist.name}"


def check(place: Place, extra: str, requirements: list[str]) -> None:
    """Install the wheel with one extra in an empty environment, and use both."""
    begun_s = time.monotonic()
    with folder(place) as inside:
        env = f"{inside}/env"
        place.run(place.python, "-m", "venv", env)
        pip = (f"{env}/bin/python", "-m", "pip", "--quiet", "--disable-pip-version-check")
        wheel = fitting(place, pip, inside)
        wanted = wheel if extra == NONE else f"{wheel}[{extra}]"
        place.run(*pip, "install", "-c", f"{inside}/constraints.txt", wanted)
        place.run(f"{env}/bin/python", "-I", "-c", IMPORTS, *requirements)
        for words in (("--help",), ("--version",), ("safekeeper", "--help")):
            shown = place.run(f"{env}/bin/walkeeper", *words).stdout
            if "walkeeper" not in shown:
                sys.exit(f"wheels: `walkeeper {' '.join(words)}` printed {shown!r}")
        version = place.run(f"{env}/bin/python", "-V").stdout.split()[1]
    took_s = time.monotonic() - begun_s
    tell(f"Python {version}, {wheel.rpartition('/')[2]}, extra {extra}: {took_s:.0f} s")


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {NONE: project["dependencies"]} | {
        name: found
        for name, found in project["optional-dependencies"].items()
        if name not in LEFT_OUT
    }
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trees", type=Path, default=ROOT / "build" / "deb")
    parser.add_argument("--extras", default=",".join(extras))
    parser.add_argument("--pythons", default=sys.executable)
    options = parser.parse_args()
    if not list(DIST.glob("*.whl")) or len(list(DIST.glob("*.tar.gz"))) != 1:
        sys.exit(f"wheels: {DIST} holds no wheel and sdist; run `make dist`")
    for place in places(options.pythons.split(","), options.trees.resolve()):
        for extra in options.extras.split(","):
            # An extra within an extra is tried alone.
            names = [name_of(requirement) for requirement in extras[extra]]
            check(place, extra, [name for name in names if name != project["name"]])


def name_of(requirement: str) -> str:
    """Return `psycopg` of `psycopg[binary]>=3.3`."""
    for mark in "[<>=!~; ":
        requirement = requirement.partition(mark)[0]
    return requirement


if __name__ == "__main__":
    main()
