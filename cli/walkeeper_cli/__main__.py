"""The program with its guard, for `python -m walkeeper_cli` and for `spark-submit`."""

from __future__ import annotations

from walkeeper_cli import restore_guard

if __name__ == "__main__":
    restore_guard.main()
