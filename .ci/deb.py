"""Build the Debian packages of the last commit, each in a tree of the Debian that it is for.

    python3 .ci/deb.py [--suites bookworm,trixie] [--out dist/deb] [--commit HEAD] [--revision 1]
                       [--again]        build a second time, and compare every byte

Needs root, debootstrap and Debian's archive. A tree is made once and kept in --trees. The packages
depend on the commit and the pinned libraries alone. pip runs outside the tree, with this machine's
settings: it gets the wheels that fit the tree's Python. The build itself asks no network.
"""

from __future__ import annotations

import argparse
import email.utils
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
# Beside the libraries of constraints.txt: it writes the list of all libraries (CycloneDX).
TOOLS = ("setuptools", "cyclonedx-bom==7.5.0")
EXTRA = "archive"
BUILD_PACKAGES = ("build-essential", "debhelper", "python3-dev", "python3-venv")
# glibc of Debian 12 is 2.36.
PLATFORMS = ("manylinux2014", *(f"manylinux_2_{minor}" for minor in range(17, 37)))


class Suite(NamedTuple):
    """A release of Debian, with its Python."""

    name: str
    number: int
    python: str


SUITES = (Suite("bookworm", 12, "3.11"), Suite("trixie", 13, "3.13"))


def tell(text: str) -> None:
    sys.stdout.write(f"deb: {text}\n")
    sys.stdout.flush()


def run(*command: str | Path, **more: str) -> str:
    """Return the output of a command; end with all that it said if it fails."""
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8", **more}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, umask=0o022)
    if done.returncode:
        shown = " ".join(map(str, command))
        sys.exit(f"{done.stdout}{done.stderr}deb: failed: {shown}; see above")
    return done.stdout


def made(folder: Path, packages: tuple[str, ...], base: Path | None = None) -> Path:
    """Return a tree of Debian that has these packages; make it if it is not there."""
    if folder.is_dir():
        return folder
    new = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.parent.mkdir(parents=True, exist_ok=True)
    tell(f"making {folder}")
    if base is None:
        run("debootstrap", "--variant=minbase", folder.parent.name, new)
        # No package starts its service in a tree.
        policy = new / "usr/sbin/policy-rc.d"
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    else:
        run("cp", "-a", base, new)
        run("chroot", new, "apt-get", "install", "-qq", "--no-install-recommends", *packages)
    return new.rename(folder)


def build_tree(suite: Suite, trees: Path) -> Path:
    base = made(trees / suite.name / "base", ())
    return made(trees / suite.name / "build", BUILD_PACKAGES, base)


def exported(commit: str, folder: Path) -> None:
    """Write the files of a commit into a new folder."""
    folder.mkdir(parents=True)
    command = ["git", "archive", commit]
    packed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-xp", "-C", folder], input=packed, check=True)


def fetch_wheels(suite: Suite, source: Path) -> None:
    """Put the libraries of a source tree into its wheels/, in the versions of constraints.txt."""
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"][EXTRA], *TOOLS]
    fitting = [f"--platform={platform}_{os.uname().machine}" for platform in PLATFORMS]
    fitting += ["--only-binary=:all:", f"--python-version={suite.python}"]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    run(*pip, *fitting, "-c", ROOT / "constraints.txt", "-d", source / "wheels", *wanted)


def changelog(suite: Suite, commit: str, version: str) -> str:
    seconds = int(run("git", "log", "-1", "--format=%ct", commit))
    return (
        f"walkeeper ({version}) {suite.name}; urgency=medium\n\n"
        f"  * Commit {run('git', 'rev-parse', commit).strip()}.\n\n"
        f" -- The walkeeper authors <walkeeper@packages.invalid>  "
        f"{email.utils.formatdate(seconds)}\n"
    )


def build(suite: Suite, commit: str, revision: str, trees: Path, out: Path) -> None:
    """Build the packages of one suite into a folder of `out`."""
    tree = build_tree(suite, trees)
    work = tree / "build"
    shutil.rmtree(work, ignore_errors=True)
    source = work / "walkeeper"
    exported(commit, source)
    shutil.copytree(ROOT / ".ci" / "debian", source / "debian")
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    version = f"{project['version']}-{revision}~deb{suite.number}u1"
    (source / "debian" / "changelog").write_text(changelog(suite, commit, version))
    fetch_wheels(suite, source)
    inside = "cd /build/walkeeper && dpkg-buildpackage -b -us -uc"
    run("chroot", tree, "sh", "-c", inside, PATH="/usr/sbin:/usr/bin:/sbin:/bin", HOME="/root")
    target = out / suite.name
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for package in sorted(work.glob("*.deb")):
        shutil.copy(package, target)
    sbom = source / "debian/walkeeper/usr/share/doc/walkeeper/sbom.cdx.json"
    shutil.copy(sbom, target / f"walkeeper_{version}.cdx.json")
    listing = [run("dpkg-deb", what, p) for p in packages(target) for what in ("--info", "-c")]
    (target / "contents.txt").write_text("\n".join(listing))
    write_sums(target)
    shutil.rmtree(work)


def packages(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.deb"))


def write_sums(folder: Path) -> None:
    """Write SHA256SUMS, which `sha256sum -c` reads, of all other files of a folder."""
    files = [path for path in sorted(folder.iterdir()) if path.is_file()]
    files = [path for path in files if path.name != "SHA256SUMS"]
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (folder / "SHA256SUMS").write_text("".join(sums))


def differing(one: str, other: str) -> list[str]:
    """Return the files of which two texts of SHA256SUMS have not the same sum."""
    lines = set(one.splitlines()) ^ set(other.splitlines())
    return sorted({line.split("  ", 1)[1] for line in lines})


def build_again(suite: Suite, commit: str, revision: str, trees: Path, out: Path) -> None:
    """Build the packages again elsewhere; end with the names of files that differ."""
    with tempfile.TemporaryDirectory(prefix="walkeeper_deb_") as name:
        build(suite, commit, revision, trees, Path(name))
        sums = [(folder / suite.name / "SHA256SUMS").read_text() for folder in (out, Path(name))]
    if files := differing(*sums):
        sys.exit(f"deb: {', '.join(files)} differ between two builds of {suite.name}")
    tell(f"{suite.name}: two builds have the same bytes\n{sums[0]}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--suites", default=",".join(suite.name for suite in SUITES))
    parser.add_argument("--out", type=Path, default=ROOT / "dist" / "deb")
    parser.add_argument("--trees", type=Path, default=ROOT / "build" / "deb")
    parser.add_argument("--commit", default="HEAD")
    parser.add_argument("--revision", default="1")
    parser.add_argument("--again", action="store_true", help="build twice, and compare")
    options = parser.parse_args()
    if os.geteuid() or not shutil.which("debootstrap"):
        sys.exit("deb: trees of Debian need root and debootstrap; run `make deb` as root")
    for suite in SUITES:
        if suite.name in options.suites.split(","):
            build(suite, options.commit, options.revision, options.trees, options.out)
            for package in packages(options.out / suite.name):
                tell(f"{package}, {package.stat().st_size:,} bytes")
            if options.again:
                build_again(suite, options.commit, options.revision, options.trees, options.out)


if __name__ == "__main__":
    main()
