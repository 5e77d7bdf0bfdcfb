"""`python -m walkeeper_cli`, and what `spark-submit` is given: the program, behind its guard."""

from __future__ import annotations

from walkeeper_cli import restore_guard

if __name__ == "__main__":
    restore_guard.main()
