"""All mutants, in the order of the rules."""

from __future__ import annotations

from tests.mutants.ancestry import ANCESTRY
from tests.mutants.appending import APPENDING
from tests.mutants.bounds import BOUNDS
from tests.mutants.electing import ELECTING
from tests.mutants.failing import FAILING
from tests.mutants.leading import LEADING
from tests.mutants.logical import LOGICAL
from tests.mutants.own_wal import OWN_WAL
from tests.mutants.quorums import QUORUMS
from tests.mutants.reading import READING
from tests.mutants.replacing import REPLACEMENTS
from tests.mutants.slow_links import SLOW_LINKS
from tests.mutants.storing import STORING
from tests.mutants.telling import TELLING
from tests.mutants.voting import VOTING

MUTANTS = (
    *VOTING,
    *ELECTING,
    *APPENDING,
    *READING,
    *FAILING,
    *QUORUMS,
    *STORING,
    *SLOW_LINKS,
    *BOUNDS,
    *OWN_WAL,
    *TELLING,
    *LEADING,
    *REPLACEMENTS,
    *LOGICAL,
    *ANCESTRY,
)
