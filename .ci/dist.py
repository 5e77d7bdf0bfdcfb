"""Build the source distribution and the wheel of the last commit, and try the wheel elsewhere.

    python3 .ci/dist.py build     dist/*.tar.gz and dist/*.whl, the wheel's parts as *.cdx.json, and
                                  SHA256SUMS; what is not committed is left out
    python3 .ci/dist.py check     their contents; the wheel in an empty environment, with its demo

Both files depend on the commit and the pinned tools alone: times are the commit's, owners and modes
are fixed. `build` builds twice, in other folders and with another umask, and compares the bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

from deb import write_sums
from sbom import wheel_sbom

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
TOOLS = ("build==1.6.1", "setuptools==84.2.1", "cython==3.3.1")
PACKAGE_FOLDERS = tuple(
    f"{folder}/"
    for folder in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"][
        "packages"
    ]["find"]["where"]
)
SYSTEM_PYTHON = Path("/usr/bin/python3")
DEMO_SECONDS = 10


def tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment without what could lend the checkout to another Python."""
    mine = ("PYTHON", "VIRTUAL_ENV", "WALKEEPER_", "MAKE", "MFLAGS")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(mine)}
    return {**kept, **more}


@contextlib.contextmanager
def readable_folder() -> Iterator[Path]:
    """Give a temporary folder that every user can read: as root, PostgreSQL runs as another one."""
    with tempfile.TemporaryDirectory(prefix="walkeeper_dist_") as name:
        os.chmod(name, 0o755)
        yield Path(name)


def repacked(sdist: bytes, epoch: int) -> bytes:
    """Return the same archive with fixed times, owners, modes and order.

    setuptools gives generated files the time of the build, and gzip writes it into its head.
    """
    packed = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(sdist), mode="r:gz") as given,
        gzip.GzipFile(fileobj=packed, mode="wb", filename="", mtime=epoch) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as written,
    ):
        for member in sorted(given.getmembers(), key=lambda found: found.name):
            plain = tarfile.TarInfo(member.name)
            plain.type, plain.size, plain.mtime = member.type, member.size, epoch
            plain.linkname = member.linkname
            is_executable = member.isdir() or bool(member.mode & 0o100)
            plain.mode = 0o755 if is_executable else 0o644
            written.addfile(plain, given.extractfile(member) if member.isreg() else None)
    return packed.getvalue()


def tools() -> Path:
    """Return the Python of an environment that has the pinned build tools and nothing else."""
    folder = ROOT / "build" / "dist-tools"
    python, pinned = folder / "bin" / "python", folder / "pinned.txt"
    wanted = "\n".join(TOOLS)
    if not pinned.is_file() or pinned.read_text() != wanted:
        venv.create(folder, clear=True, with_pip=True)
        install(python, *TOOLS)
        pinned.write_text(wanted)
    return python


def install(python: Path, *requirements: str) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*command, *requirements], check=True, env=environment())


def built(python: Path, epoch: int, folder: Path) -> list[Path]:
    """Build both in `folder` from an export of the last commit; the wheel from the sdist alone."""
    tree, out = folder / "tree", folder / "out"
    tree.mkdir()
    export = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True)
    subprocess.run(["tar", "-xp", "-C", tree], input=export.stdout, check=True)

    def build(what: str, source: Path) -> Path:
        command = ["-m", "build", "--no-isolation", what, "--outdir", str(out), str(source)]
        env = environment(SOURCE_DATE_EPOCH=str(epoch), LC_ALL="C.UTF-8")
        done = subprocess.run(
            [python, *command], env=env, capture_output=True, text=True, umask=0o022
        )
        if done.returncode:
            sys.exit(f"{done.stdout}{done.stderr}dist: {what} failed; see above")
        return next(out.glob("*.whl" if what == "--wheel" else "*.tar.gz"))

    sdist = build("--sdist", tree)
    sdist.write_bytes(repacked(sdist.read_bytes(), epoch))
    subprocess.run(["tar", "-xzpf", sdist, "-C", folder], check=True)
    return [sdist, build("--wheel", folder / sdist.name.removesuffix(".tar.gz"))]


def build_twice() -> None:
    if not (ROOT / ".git").exists():
        sys.exit("dist: this tree is no checkout, so it has no commit; use `python -m build` in it")
    if output("git", "status", "--porcelain", "--untracked-files=no"):
        tell("dist: changes that are not committed are left out; commit them to have them in it")
    epoch, python = int(output("git", "log", "-1", "--format=%ct")), tools()
    with readable_folder() as first, readable_folder() as second:
        os.umask(0o022)
        files = built(python, epoch, first)
        os.umask(0o077)
        again = built(python, epoch, second)
        os.umask(0o022)
        for one, other in zip(files, again, strict=True):
            if one.read_bytes() != other.read_bytes():
                sys.exit(f"dist: {one.name} differs between two builds of one commit")
        DIST.mkdir(exist_ok=True)
        for old in filter(Path.is_file, DIST.iterdir()):  # not the packages of `make deb`
            old.unlink()
        for file in files:
            shutil.copy(file, DIST)
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            tell(f"dist: {file.name}, {file.stat().st_size:,} bytes, sha256 {digest}")
        wheel = next(file for file in files if file.suffix == ".whl")
        sbom = wheel_sbom(wheel, (ROOT / "constraints.txt").read_text(), epoch)
        (DIST / wheel.with_suffix(".cdx.json").name).write_text(sbom)
        write_sums(DIST)


def check_contents(sdist: Path, wheel: Path) -> None:
    """Compare the sdist with the commit, and the wheel with the packages of the sdist."""
    committed = set(output("git", "ls-tree", "-r", "--name-only", "-z", "HEAD").split("\0")) - {""}
    with tarfile.open(sdist) as archive:
        held = {m.name.partition("/")[2] for m in archive.getmembers() if not m.isdir()}
    made = {name for name in held if name.startswith("walkeeper.egg-info/")}
    if lacking := sorted(committed - held):
        sys.exit(f"dist: the sdist lacks {', '.join(lacking)}: add them to MANIFEST.in")
    if strange := sorted(held - committed - made - {"PKG-INFO", "setup.cfg"}):
        sys.exit(f"dist: the sdist has {', '.join(strange)}, which no commit has: see MANIFEST.in")
    names = zipfile.ZipFile(wheel).namelist()
    for name in sorted(committed):
        folder, _, inner = name.partition("/")
        is_script = inner.startswith("scripts/")
        if f"{folder}/" in PACKAGE_FOLDERS and not is_script and inner not in names:
            sys.exit(f"dist: the wheel lacks {name}: see package-data in pyproject.toml")
    for ending in ("licenses/LICENSE", "licenses/NOTICE", "/walkeeper", "/walkeeper-python"):
        if not any(name.endswith(ending) for name in names):
            sys.exit(f"dist: the wheel lacks {ending}: see pyproject.toml")
    tell(f"dist: the sdist holds all {len(committed)} files, the wheel all {len(names)}")


def check_installed(wheel: Path) -> None:
    """Install the wheel where nothing else is, and run its command far from the checkout."""
    version = wheel.name.split("-")[1]
    with readable_folder() as folder:
        asked = "import sys; sys.exit(sys.version_info < (3, 11))"
        is_new = (
            SYSTEM_PYTHON.is_file() and not subprocess.run([SYSTEM_PYTHON, "-c", asked]).returncode
        )
        base = SYSTEM_PYTHON if is_new else Path(sys.executable)
        subprocess.run([base, "-m", "venv", folder / "env"], check=True, env=environment())
        python, elsewhere = folder / "env" / "bin" / "python", folder / "elsewhere"
        elsewhere.mkdir()
        install(python, f"{wheel}[demo]")

        def run(*command: str) -> str:
            tell(f"dist: {' '.join(command)}")
            program = [str(folder / "env" / "bin" / command[0]), *command[1:]]
            done = subprocess.run(
                program, cwd=elsewhere, env=environment(HOME=str(elsewhere)), text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600,
            )  # fmt: skip
            if done.returncode:
                sys.exit(f"{done.stdout}dist: {' '.join(command)} ended with {done.returncode}")
            return done.stdout

        where = run("python", "-c", "import walkeeper_common as it; print(it.__file__)").strip()
        if not Path(where).is_relative_to(folder):
            sys.exit(f"dist: walkeeper_common came from {where}, not from the wheel")
        shown = run("walkeeper", "--version")
        if shown.splitlines() != [f"walkeeper {version}", "compiled fast path: on"]:
            sys.exit(f"dist: walkeeper --version printed {shown!r}; the wheel is {version}")
        if "safekeeper" not in run("walkeeper", "--help"):
            sys.exit("dist: walkeeper --help names no safekeeper")
        shown = run("walkeeper", "demo", "--seconds", str(DEMO_SECONDS))
        tell("".join(f"    {line}\n" for line in shown.splitlines() if "prove" in line).rstrip())
        if not any(line.startswith("5 claims proven") for line in shown.splitlines()):
            sys.exit(f"{shown}dist: the demo did not prove its five claims")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("build", "check"))
    if parser.parse_args().what == "build":
        build_twice()
        return
    sdists, wheels = sorted(DIST.glob("*.tar.gz")), sorted(DIST.glob("*.whl"))
    if len(sdists) != 1 or len(wheels) != 1:
        sys.exit(f"dist: {DIST} holds no single sdist and wheel; run `make dist`")
    check_contents(sdists[0], wheels[0])
    check_installed(wheels[0])


if __name__ == "__main__":
    main()
