"""The control file: one log's promises (`Durable`) as bytes, and back. Pure.

A sealed file (see sealed_file) of explicit fields in the order below; the codec of its ballot,
history and configuration is the wire's. It is written whole, under another name, and
renamed. So no power cut leaves a torn file, and a bad one means a bad disk or another writer.

Contract: `decode(encode(durable), name) == durable`, or CorruptWal whose text names the file, what
is wrong and the remedy. A safekeeper that has lost its control file has lost its promises, and
must not vote again under the incarnation that made them (docs/protocol.md R17). A program refuses
a file of a version that it does not know.
"""

from __future__ import annotations

from dataclasses import replace

from walkeeper_common.wire.fields import UUID_BYTES, Reader, Writer
from walkeeper_safekeeper.consensus.durable import Durable
from walkeeper_safekeeper.storage.sealed_file import flaws_with_remedy, seal, unseal

MAGIC = b"WKCONTRL"
# The second ends with the fields of a change of members, the third with donors as well.
VERSION, VERSION_CHANGED, VERSION_LATE = 1, 2, 3
INCARNATION_BYTES_MAX = 64

_REMEDY = (
    "This safekeeper may not vote again under this incarnation, because what it promised is lost. "
    "Replace it: walkeeper replace --member ID --with ID@HOST:PORT, on an empty directory"
)


def encode(durable: Durable) -> bytes:
    """Return the bytes of the whole file."""
    fields = Writer()
    fields.u64(durable.acceptor_id)
    fields.blob(durable.incarnation)
    fields.raw(durable.log_uuid, UUID_BYTES)
    fields.optional_configuration(durable.configuration)
    fields.ballot(durable.ballot)
    fields.history(durable.history)
    fields.lsn(durable.commit_lsn)
    fields.lsn(durable.restart_lsn)
    fields.lsn(durable.reached_lsn)
    fields.optional_lsn(durable.truncating_to)
    fields.optional_lsn(durable.suspect_from)
    fields.boolean(durable.clean_stop)
    if not durable.has_change:
        return seal(MAGIC, VERSION, fields.finish())
    fields.lsn(durable.base_lsn)
    fields.ballot(durable.change_round)
    fields.ballot(durable.accepted_round)
    fields.optional_configuration(durable.accepted)
    if not durable.donors:
        return seal(MAGIC, VERSION_CHANGED, fields.finish())
    fields.text(",".join(durable.donors))
    return seal(MAGIC, VERSION_LATE, fields.finish())


def decode(data: bytes, name: str) -> Durable:
    """Return the argument of `encode`. `name` is the path for the error text."""
    with flaws_with_remedy(name, _REMEDY):
        version, body = unseal(MAGIC, {VERSION, VERSION_CHANGED, VERSION_LATE}, data, name)
        return _decode_body(body, version)


def _decode_body(body: bytes, version: int) -> Durable:
    fields = Reader(body)
    durable = Durable(
        acceptor_id=fields.u64(),
        incarnation=fields.blob(INCARNATION_BYTES_MAX),
        log_uuid=fields.raw(UUID_BYTES),
        configuration=fields.optional_configuration(),
        ballot=fields.ballot(),
        history=fields.history(),
        commit_lsn=fields.lsn(),
        restart_lsn=fields.lsn(),
        reached_lsn=fields.lsn(),
        truncating_to=fields.optional_lsn(),
        suspect_from=fields.optional_lsn(),
        clean_stop=fields.boolean(),
    )
    if version != VERSION:
        durable = replace(
            durable,
            base_lsn=fields.lsn(),
            change_round=fields.ballot(),
            accepted_round=fields.ballot(),
            accepted=fields.optional_configuration(),
        )
    if version == VERSION_LATE:
        durable = replace(durable, donors=tuple(fields.text().split(",")))
    fields.done()
    return durable
