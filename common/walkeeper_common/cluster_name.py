"""The names that a cluster, which has one log on its safekeepers, may have. Pure."""

from __future__ import annotations

import re

from walkeeper_common.errors import Refused

CLUSTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


def check_cluster_name(cluster: str) -> None:
    """Raise Refused if the name cannot become a folder's name and a word in a conninfo."""
    if not CLUSTER_NAME.fullmatch(cluster):
        raise Refused(
            f"{cluster!r} cannot name a cluster: letters, digits, '_', '-' and '.', "
            "at most 63, beginning with a letter or a digit"
        )
