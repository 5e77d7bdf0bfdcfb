"""The loops of page_resets.py: resets listed, entered, and what is before them left out.

Part of _redo.pyx.
"""


def list_resets(records, blocks, int64_t apply_flag, rows):
    """Write a row of RESET_ROW for each reference that resets its page; return their number."""
    cdef Log log = log_of(NO_BYTES, records, blocks, NO_PAGES, apply_flag, 0)
    cdef uint8_t[::1] row_bytes = rows.view(np.uint8)
    cdef ResetRow *out = <ResetRow *>first_of(row_bytes)
    cdef const BlockRow *block
    cdef int64_t k, count = 0
    assert len(rows) >= len(blocks), f"{len(rows)=} {len(blocks)=}"
    with nogil:
        for k in range(log.block_count):
            block = &log.blocks[k]
            if not is_redone(&log.records[block.record], block) or not resets(&log, k):
                continue
            out[count].tablespace, out[count].database = block.tablespace, block.database
            out[count].relfilenode, out[count].block = block.relfilenode, block.block_number
            out[count].prev_lsn = log.records[block.record].prev_lsn
            count += 1
    return count


def enter_resets(int64_t[::1] keys, int64_t[::1] lsns, int64_t relation, rows):
    """Enter the last reset of each page of a relation into a hash table with room for them."""
    cdef Slots held = pages_with(keys, lsns)
    cdef const uint8_t[::1] row_bytes = rows.view(np.uint8)
    cdef const ResetRow *given = <const ResetRow *>first_of(row_bytes)
    cdef int64_t i, at, count = len(rows)
    assert 2 * count < held.hash_rows, f"{count=} {len(keys)=}"
    with nogil:
        for i in range(count):
            at = slot_place(&held, relation, given[i].block)
            if keys[at] < 0:
                keys[at], lsns[at] = relation << 32 | given[i].block, given[i].prev_lsn
            lsns[at] = max(lsns[at], <int64_t>given[i].prev_lsn)


def leave_out(records, blocks, int64_t[::1] keys, int64_t[::1] lsns, chosen):
    """Move the references that no later one resets to the front; return their number."""
    cdef Slots held = pages_with(keys, lsns)
    cdef Log log = log_of(NO_BYTES, records, blocks, NO_PAGES, 0, 0)
    cdef uint8_t[::1] chosen_bytes = chosen.view(np.uint8)
    cdef ChosenRow *rows = <ChosenRow *>first_of(chosen_bytes)
    cdef const BlockRow *block
    cdef int64_t i, at, kept = 0, count = len(chosen)
    with nogil:
        for i in range(count):
            block = &log.blocks[rows[i].row]
            at = slot_place(&held, rows[i].relation, block.block_number)
            if keys[at] >= 0 and <int64_t>log.records[block.record].prev_lsn < lsns[at]:
                continue
            rows[kept] = rows[i]
            kept += 1
    return kept


cdef Slots pages_with(int64_t[::1] keys, int64_t[::1] lsns) except *:
    """Return a hash table of pages, which has no slots."""
    cdef Slots made
    assert keys.shape[0] == lsns.shape[0], f"{len(keys)=} {len(lsns)=}"
    assert keys.shape[0] & (keys.shape[0] - 1) == 0, f"{len(keys)=}"
    memset(&made, 0, sizeof(made))
    made.hash_keys, made.hash_rows = &keys[0], keys.shape[0]
    return made
