"""OIDs that begin again, as after 2**32 of them: a stopped server's next start takes them from one.

    server.stop(); next_oid_from(server, 16384); server.start()

Contract: the log stays one log, while pg_resetwal would begin another one. A server takes the next
OID from the record of the shutdown's checkpoint, or from pg_control's copy of it, as its version
has it. So both are written (CheckPoint in pg_control.h of PostgreSQL 13 to 18).
"""

from __future__ import annotations

from struct import pack_into, unpack_from

from crc32c import crc32c

from tests.support.postgres_server import PostgresServer
from walkeeper_common.lsn import WAL_PAGE_BYTES, segment_name
from walkeeper_common.postgres.control_data import CHECKPOINT, CRC_OFFSETS, parse_control_data

_HEADER_BYTES, _CRC_AT, _MAIN_AT, _NEXT_OID_AT = 24, 20, 26, 32


def next_oid_from(server: PostgresServer, oid: int) -> None:
    """Write `oid` into the last checkpoint of a server that was shut down."""
    control = server.data / "global" / "pg_control"
    data = bytearray(control.read_bytes())
    known = parse_control_data(bytes(data))
    crc_at = next(at for at in CRC_OFFSETS
                  if crc32c(bytes(data[:at])) == unpack_from("<I", data, at)[0])  # fmt: skip
    pack_into("<I", data, CHECKPOINT.start + _NEXT_OID_AT, oid)
    pack_into("<I", data, crc_at, crc32c(bytes(data[:crc_at])))
    control.write_bytes(data)
    lsn = known.checkpoint_lsn
    name = segment_name(known.checkpoint_timeline, lsn, known.segment_bytes)
    path = server.data / "pg_wal" / name
    data, at = bytearray(path.read_bytes()), lsn % known.segment_bytes
    (size,) = unpack_from("<I", data, at)
    assert at % WAL_PAGE_BYTES + size <= WAL_PAGE_BYTES, f"a checkpoint in two pages: {lsn}"
    pack_into("<I", data, at + _MAIN_AT + _NEXT_OID_AT, oid)
    body, header = bytes(data[at + _HEADER_BYTES : at + size]), bytes(data[at : at + _CRC_AT])
    pack_into("<I", data, at + _CRC_AT, crc32c(header, crc32c(body)))
    path.write_bytes(data)
