"""The frame of a test program's command line: its name, and its docstring as the help text."""

from __future__ import annotations

import argparse


def program_parser(module: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser for `python -m MODULE`, which shows the description as it is written."""
    return argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
