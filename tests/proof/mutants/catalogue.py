"""All mutants, in the order of the rules."""

from __future__ import annotations

from tests.proof.mutants.access import ACCESS
from tests.proof.mutants.analysing import ANALYSING
from tests.proof.mutants.ancestry import ANCESTRY
from tests.proof.mutants.appending import APPENDING
from tests.proof.mutants.bunching import BUNCHING
from tests.proof.mutants.closing import CLOSING
from tests.proof.mutants.commanding import COMMANDING
from tests.proof.mutants.copying import COPYING
from tests.proof.mutants.doubting import DOUBTING
from tests.proof.mutants.dropping import DROPPING
from tests.proof.mutants.electing import ELECTING
from tests.proof.mutants.failing import FAILING
from tests.proof.mutants.fast_appends import FAST_APPENDS
from tests.proof.mutants.fast_primary import FAST_PRIMARY
from tests.proof.mutants.fast_stream import FAST_STREAM
from tests.proof.mutants.flooding import FLOODING
from tests.proof.mutants.gating import GATING
from tests.proof.mutants.knowing_few import KNOWING_FEW
from tests.proof.mutants.late import LATE
from tests.proof.mutants.leading import LEADING
from tests.proof.mutants.learning import LEARNERS
from tests.proof.mutants.limits import BOUNDS
from tests.proof.mutants.logical import LOGICAL
from tests.proof.mutants.naming import NAMING
from tests.proof.mutants.operating import OPERATING
from tests.proof.mutants.own_wal import OWN_WAL
from tests.proof.mutants.proving import PROVING
from tests.proof.mutants.quorums import QUORUMS
from tests.proof.mutants.readers import READING
from tests.proof.mutants.readying import READYING
from tests.proof.mutants.redoing import REDOING
from tests.proof.mutants.replacing import REPLACEMENTS
from tests.proof.mutants.revoking import REVOKING
from tests.proof.mutants.scrubbing import SCRUBBING
from tests.proof.mutants.slow_links import SLOW_LINKS
from tests.proof.mutants.spares import SPARES
from tests.proof.mutants.sparks import SPARKS
from tests.proof.mutants.storing import STORING
from tests.proof.mutants.streaming import STREAMING
from tests.proof.mutants.telling_record import TELLING
from tests.proof.mutants.undoing import UNDOING
from tests.proof.mutants.voting import VOTING
from tests.proof.mutants.zones import ZONES

MUTANTS = (
    *VOTING,
    *ELECTING,
    *APPENDING,
    *FAST_APPENDS,
    *FAST_STREAM,
    *BUNCHING,
    *FAST_PRIMARY,
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
    *LEARNERS,
    *LATE,
    *SPARES,
    *ZONES,
    *DROPPING,
    *CLOSING,
    *LOGICAL,
    *COPYING,
    *ANCESTRY,
    *READYING,
    *ACCESS,
    *REVOKING,
    *FLOODING,
    *OPERATING,
    *COMMANDING,
    *GATING,
    *SCRUBBING,
    *ANALYSING,
    *DOUBTING,
    *PROVING,
    *UNDOING,
    *NAMING,
    *REDOING,
    *STREAMING,
    *SPARKS,
    *KNOWING_FEW,
)
