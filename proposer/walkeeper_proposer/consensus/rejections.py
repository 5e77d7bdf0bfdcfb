"""The note on a safekeeper's Reject: the member by its id, and the weight by the code. Pure."""

from __future__ import annotations

from walkeeper_common.operator_text.note import Note
from walkeeper_common.operator_text.severity import Severity
from walkeeper_common.quorum import member_id
from walkeeper_common.wire.messages import Reject, RejectCode
from walkeeper_proposer.consensus.progress import Member

SEVERITY = {
    RejectCode.NO_SPACE: Severity.WARNING,
    RejectCode.STORAGE_FAILED: Severity.ERROR,
    RejectCode.CORRUPT: Severity.ERROR,
}


def note_of(member: Member, reject: Reject) -> Note:
    """Return the note; its `link` is the number that the shell shows as an address."""
    whose = f"safekeeper {member_id(member.name)}" if member.name else "a safekeeper"
    facts = (("link", member.link), ("code", reject.code.name))
    return Note(f"{whose}: {reject.text}", facts, SEVERITY.get(reject.code, Severity.LOG))
