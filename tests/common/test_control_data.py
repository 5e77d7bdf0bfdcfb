"""pg_control as PostgreSQL writes it, and what is refused."""

from __future__ import annotations

import pytest

from tests.support.postgres_server import PostgresServer, program, run_as_server_user
from walkeeper_common.lsn import segment_name
from walkeeper_common.postgres.control_data import (
    ControlData,
    InvalidControlData,
    State,
    is_same_checkpoint,
    parse_control_data,
)

pytestmark = pytest.mark.postgres


def control_of(server: PostgresServer) -> tuple[bytes, ControlData]:
    content = (server.data / "global" / "pg_control").read_bytes()
    return content, parse_control_data(content)


def test_the_fields_are_those_of_pg_controldata() -> None:
    with PostgresServer.create(initdb_options=["--wal-segsize=1"]) as server:
        server.sql("CREATE TABLE t (i int)", "INSERT INTO t VALUES (1)", "CHECKPOINT")
        content, control = control_of(server)
        done = run_as_server_user([program("pg_controldata"), str(server.data)])
        said = dict(line.split(":", 1) for line in done.stdout.splitlines() if ":" in line)
        shown = {name: value.strip() for name, value in said.items()}
        assert control.system_id == int(shown["Database system identifier"])
        assert control.state is State.IN_PRODUCTION
        assert str(control.checkpoint_lsn) == shown["Latest checkpoint location"]
        assert str(control.redo_lsn) == shown["Latest checkpoint's REDO location"]
        assert control.checkpoint_timeline == int(shown["Latest checkpoint's TimeLineID"])
        assert str(control.min_recovery_lsn) == shown["Minimum recovery ending location"]
        assert control.segment_bytes == int(shown["Bytes per WAL segment"]) == 1 << 20
        name = segment_name(1, control.checkpoint_lsn, control.segment_bytes)
        wal = (server.data / "pg_wal" / name).read_bytes()
        at = control.checkpoint_lsn % control.segment_bytes + 26
        payload = wal[at : at + len(control.checkpoint)]
        assert is_same_checkpoint(control.checkpoint, payload)
        other = payload[:64] + bytes([payload[64] ^ 1]) + payload[65:]
        assert not is_same_checkpoint(control.checkpoint, other), "its time"
        server.stop()
        assert control_of(server)[1].state is State.SHUT_DOWN
    for at in (0, 24, 60, 136, 200):
        torn = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        with pytest.raises(InvalidControlData):
            parse_control_data(torn)
    for size in (0, 8, 100, 200, 280):
        with pytest.raises(InvalidControlData):
            parse_control_data(content[:size])


def test_a_standby_has_its_minimum_recovery_point() -> None:
    with PostgresServer.create(initdb_options=["--wal-segsize=1"]) as primary:
        standby = primary.base_backup()
        try:
            (standby.data / "standby.signal").touch()
            standby.start()
            standby.stop()
            _, control = control_of(standby)
            assert control.state is State.SHUT_DOWN_IN_RECOVERY
            assert control.min_recovery_lsn > control.redo_lsn
            assert control.min_recovery_timeline == 1
        finally:
            standby.delete()
