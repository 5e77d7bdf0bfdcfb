"""The program with its guard, for `python -m walkeeper_cli` and for `spark-submit`."""

from __future__ import annotations

from walkeeper_cli import start

if __name__ == "__main__":
    start.main()
