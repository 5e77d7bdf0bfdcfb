"""The engine of `make containers` has the images that docker/ names, and says why there is none."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.folders import ROOT
from tests.support.image_build import instructions

COMPOSE = ROOT / "docker" / "compose.yaml"


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / ".ci"))
    for name in ("engine", "deb", "wheels"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("engine")


def test_the_base_images_have_the_names_of_docker(engine: Any) -> None:
    assert ("FROM", engine.PYTHON_IMAGE) in instructions()
    named = re.findall(r"postgres:\$\{POSTGRES_VERSION:-(\d+)\}", COMPOSE.read_text())
    assert set(named) == {str(engine.POSTGRES)}


def test_the_entrypoint_is_a_script(engine: Any) -> None:
    done = subprocess.run(["bash", "-n"], input=engine.ENTRYPOINT, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_mounts_below_a_folder_go_from_the_inner_to_the_outer(engine: Any) -> None:
    """Podman leaves them behind, and `make clean` would stumble over them."""
    points = ("/", "/b/e", "/b/e/storage", "/b/e/storage/a\\040b/merged", "/b/engine", "/srv")
    lines = "".join(f"36 35 98:0 / {at} rw,noatime - ext3 /dev/root rw\n" for at in points)
    found = engine.mounts_below(Path("/b/e"), lines)
    assert found == ["/b/e/storage/a b/merged", "/b/e/storage"]


def test_the_monitors_of_this_engine_end_and_no_others(
    engine: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """That of an exec would run podman five minutes later, which mounts the storage again."""
    lines = {
        11: ("/usr/bin/conmon", "--exit-command-arg", "/b/e/storage", "--exec-attach"),
        12: ("/usr/bin/conmon", "--exit-command-arg", "/b/engine/storage"),
        13: ("tail", "/b/e/storage/log"),
        14: (),
    }
    for number, words in lines.items():
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "cmdline").write_text("\0".join(words))
    killed = list[int]()
    monkeypatch.setattr(engine.os, "kill", lambda number, _: killed.append(number))
    assert engine.end_monitors(Path("/b/e"), tmp_path) == [11] == killed


def test_without_root_it_is_skipped_with_the_reason(
    engine: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engine.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(sys, "argv", ["engine.py", "true"])
    assert engine.main() == engine.SKIPPED
    assert "needs root" in capsys.readouterr().out


def test_without_apt_it_is_skipped_with_the_reason(
    engine: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engine.os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "argv", ["engine.py", "true"])
    assert engine.main() == engine.SKIPPED
    assert "skipped: the packages of an engine need apt-get" in capsys.readouterr().out


def test_the_play_says_that_no_engine_answers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without docker and podman in PATH."""
    from tests.containers import __main__ as play

    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "argv", ["tests.containers"])
    assert play.main() == play.SKIPPED
    said = capsys.readouterr().out
    assert "skipped: no container engine answers: " in said and "'docker'" in said
    assert "see docs/containers.md" in said
