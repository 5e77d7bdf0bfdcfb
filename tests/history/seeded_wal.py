"""WAL of a seed: a server runs the workload, and loses the end of a record in a crash. It starts
again, and goes on a new timeline."""

from __future__ import annotations

from pathlib import Path

from tests.history.workload import STEPS, Workload
from tests.support.postgres_server import PostgresServer, own
from tests.support.waiting import wait_until
from walkeeper_common.lsn import WAL_PAGE_BYTES, Lsn, segment_name

MESSAGE_BYTES = 60_000  # several pages, so that there is a page boundary inside the record


def make_wal(server: PostgresServer, seed: int, *, scale: int = 2000) -> list[str]:
    """Fill pg_wal of a running server and stop it; return the steps that this server lacks."""
    absent = play(server, seed, scale)
    crash_inside_a_record(server)
    absent += play(server, seed + 1, scale // 4)
    go_to_a_new_timeline(server)
    absent += play(server, seed + 2, scale // 4)
    server.stop()
    return absent


def play(server: PostgresServer, seed: int, scale: int) -> list[str]:
    with server.connect(options="-c statement_timeout=120s") as connection:
        connection.execute(f"CREATE SCHEMA s{seed}".encode())
        connection.execute(f"SET search_path = s{seed}, public".encode())
        load = Workload(connection, seed, scale)
        load.play(STEPS)
        return load.absent


def crash_inside_a_record(server: PostgresServer) -> None:
    """Crash; the part of the last record after a page boundary never reaches the disk."""
    segment_bytes = int(server.sql("SELECT setting FROM pg_settings WHERE name='wal_segment_size'"))
    server.sql("CHECKPOINT")
    begin = Lsn.parse(
        server.sql(
            "SELECT pg_switch_wal()",
            "CREATE TABLE IF NOT EXISTS public.before_crash (id int)",
            "INSERT INTO public.before_crash VALUES (1)",
            "SELECT pg_current_wal_insert_lsn()",
        )
    )
    server.sql(f"SELECT pg_logical_emit_message(false, 'torn', repeat('t', {MESSAGE_BYTES}))")
    server.sql("INSERT INTO public.before_crash VALUES (2)")
    server.kill()
    cut = begin.round_up(WAL_PAGE_BYTES) + WAL_PAGE_BYTES
    wal = server.data / "pg_wal"
    for path in sorted(wal.glob("0*")):
        if not path.is_file() or len(path.name) != 24:
            continue
        if path.name[8:] > segment_name(1, cut, segment_bytes)[8:]:
            path.unlink()
    timeline = max(path.name[:8] for path in wal.glob("0*") if len(path.name) == 24)
    with (wal / segment_name(int(timeline, 16), cut, segment_bytes)).open("r+b") as file:
        within = cut % segment_bytes
        file.seek(within)
        file.write(bytes(segment_bytes - within))
    server.start()


def go_to_a_new_timeline(server: PostgresServer) -> None:
    """Archive recovery to the end of its own WAL."""
    server.stop()
    server.configure({"restore_command": "false", "recovery_target_timeline": "latest"})
    signal = server.data / "recovery.signal"
    signal.touch()
    own(server.data)
    server.start()
    # It answers queries before it is promoted.
    wait_until(lambda: not server.sql("SELECT pg_is_in_recovery()"))


def segment_paths(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if len(path.name) == 24 and path.is_file())
