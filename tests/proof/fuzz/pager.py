"""The pager's inputs from others: requests for pages, and which block each record is about.

`pager_requests`: a query string. Promises: it raises NotAPlace with a text, or gives a request. The
request's place prints as what it is, and its block, LSN and time are in their ranges.

`pager_index`: an input is that of `wal`. Promises: no bytes of a record make the index raise. For
each block the index gives exactly the records that refer to it, in the order of the log. The twin
is a reader that looks at one block reference after the other.
"""

from __future__ import annotations

from random import Random
from urllib.parse import parse_qsl, urlencode

from tests.proof.fuzz.blocks import block_seeds
from tests.proof.fuzz.contract import Target, require
from tests.proof.fuzz.history import FEW_BLOCKS, FEW_RECORDS, planned
from tests.proof.fuzz.wal import BYTES, laid_out
from walkeeper_pager.block_index import BlockIndex, Step
from walkeeper_pager.page_names import FORKS, NotAPlace, NotReplayed, Place
from walkeeper_pager.page_requests import TIMEOUT_S_MAX, PageRequest
from walkeeper_replay.redo.apply import FORK_MASK
from walkeeper_wal.records.walk import Buffers
from walkeeper_wal.sources.reading import SegmentReader

REQUESTED = (
    {"relation": "1663/5/16384", "block": "0"},
    {"relation": "base/5/16384_init", "block": "7", "lsn": "0/5A3F2B8"},
    {"relation": "global/1262", "block": "4294967294", "fork": "main", "timeout": "0.5"},
    {"relation": "pg_tblspc/16390/PG_15_202209061/5/16391_vm", "block": "1", "timeout": "1e2"},
    {"relation": "base/5/16384", "block": "-1", "fork": "fsm", "lsn": "FFFFFFFF/FFFFFFFF"},
    {"relation": "9" * 4400 + "/1/1", "block": "9" * 4400},
)
_BUFFERS = Buffers(FEW_RECORDS, FEW_BLOCKS)


def run_request(data: bytes) -> None:
    pairs = parse_qsl(data.decode("utf-8", "replace"), keep_blank_values=True)
    try:
        asked = PageRequest.parse(dict(pairs))
    except (NotAPlace, NotReplayed) as error:
        require(bool(str(error)), "no text for {}", pairs)
        return
    place = asked.place
    numbers = f"{place.tablespace}/{place.database}/{place.relfilenode}"
    again = Place.parse(numbers, list(FORKS)[place.fork])
    require(again == place, "{} is {} is {}", pairs, place, again)
    parts = (place.tablespace, place.database, place.relfilenode)
    require(all(0 <= part < 1 << 32 for part in parts), "{}", place)
    require(0 <= asked.timeout_s <= TIMEOUT_S_MAX, "{} s", asked.timeout_s)
    require(asked.lsn is None or 0 <= asked.lsn < 1 << 64, "lsn {}", asked.lsn)


def alter_request(data: bytes, random: Random) -> bytes:
    """Change one value to that of another request, or double a piece of one."""
    query = dict(parse_qsl(data.decode("utf-8", "replace"), keep_blank_values=True))
    other = random.choice(REQUESTED)
    name = random.choice(list(other))
    value = other[name]
    at = random.randrange(len(value) + 1)
    query[name] = random.choice([value, value[:at] + value[at // 2 :], value[at:]])
    return urlencode(query).encode()


def run_index(data: bytes) -> None:
    wal, base, size = laid_out(data)
    files, segments = planned(wal, int(base), size)
    reader = SegmentReader(files, engine_name="numpy", check_crc=False, buffers=_BUFFERS)
    for number, segment in enumerate(segments):
        index, found = BlockIndex(segment.first_lsn), dict[tuple[Place, int], list[Step]]()
        for batch in reader.read(segments, number):
            index.add(batch)
            starts, ends = batch.start_lsn().tolist(), batch.end_lsn().tolist()
            for block in batch.blocks:
                row, fork = int(block["record"]), int(block["flags"]) & FORK_MASK
                if fork not in (FORKS["main"], FORKS["init"]):
                    continue
                names = ("tablespace", "database", "relfilenode")
                tablespace, database, relfilenode = (int(block[name]) for name in names)
                place = Place(tablespace, database, relfilenode, fork)
                step = Step(starts[row], ends[row], False)
                found.setdefault((place, int(block["block_number"])), []).append(step)
        for (place, block_number), steps in found.items():
            given = index.steps(place, block_number, 1 << 63)
            require(
                [(s.start_lsn, s.end_lsn) for s in given] == [(s[0], s[1]) for s in steps],
                "block {} of {}: {}, not {}", block_number, place, given, steps,
            )  # fmt: skip
            half = steps[len(steps) // 2].end_lsn
            until = [s for s in index.steps(place, block_number, half) if s.end_lsn > half]
            require(not until, "behind {}: {}", half, until)
        require(index.row_count == sum(map(len, found.values())), "{} rows", index.row_count)


REQUESTS = Target(
    "pager_requests",
    "a query for a page: a place, or a usage error",
    run_request,
    lambda: (urlencode(each).encode() for each in REQUESTED),
    bytes_max=12_000,
    alter=alter_request,
)
INDEX = Target(
    "pager_index",
    "records by the blocks that they are about, beside one that looks at each",
    run_index,
    block_seeds,
    bytes_max=BYTES.bytes_max,
    alter=BYTES.alter,
    repair=BYTES.repair,
)
