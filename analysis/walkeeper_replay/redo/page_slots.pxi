"""The relations and pages of a store: hash tables, and the choice of records. Part of _redo.pyx."""


cdef inline int64_t hashed(int64_t a, int64_t b) noexcept nogil:
    cdef uint64_t x = <uint64_t>a * <uint64_t>(-7046029254386353131)
    x ^= <uint64_t>b * <uint64_t>(-4417276706812531889)
    x ^= <uint64_t>(<int64_t>x >> 29)
    return <int64_t>(x * <uint64_t>(-49064778989728563)) ^ <int64_t>x >> 17


cdef int64_t relation_place(
    const int64_t *keys, const int32_t *values, int64_t rows, int64_t space, int64_t node
) noexcept nogil:
    """Return the relation's place in the table, or that of the free row where it would be."""
    cdef int64_t mask = rows - 1, at = hashed(space, node) & mask
    while values[at] >= 0 and (keys[2 * at] != space or keys[2 * at + 1] != node):
        at = (at + 1) & mask
    return at


cdef inline bint is_redone(const RecordRow *record, const BlockRow *block) noexcept nogil:
    """Return whether redo takes a reference: to a page itself, by a record that a heap may have."""
    return block.flags & FORK_MASK == 0 and (
        record.rmid == HEAP or record.rmid == HEAP2 or record.rmid == XLOG
        or record.rmid == GENERIC or record.rmid >= CUSTOM_MIN
    )


cdef Chosen choose_rows(
    const RecordRow *records, const BlockRow *blocks, int64_t first, int64_t block_count,
    int64_t *keys, int32_t *values, int64_t relations_max, const int64_t *low_nodes,
    int64_t low_count, bint takes_all, int64_t part, int64_t parts, const uint8_t *whole,
    int64_t *counts, ChosenRow *chosen
) noexcept nogil:
    cdef Chosen done
    cdef int64_t space_before = -1, node_before = -1, relation = -1, space, node, at, k, z, number
    cdef const BlockRow *block
    cdef bint wanted
    done.count, done.behind = 0, block_count
    for k in range(first, block_count):
        block = &blocks[k]
        if not is_redone(&records[block.record], block):
            continue
        space, node = <int64_t>block.tablespace << 32 | block.database, block.relfilenode
        if space != space_before or node != node_before:
            space_before, node_before = space, node
            at = relation_place(keys, values, relations_max, space, node)
            relation = values[at]
            wanted = takes_all
            if relation < 0 and not wanted:
                for z in range(low_count):
                    wanted = wanted or low_nodes[z] == node
            if relation < 0 and wanted:
                if 2 * (counts[RELATIONS] + 1) > relations_max:
                    done.behind = k
                    return done
                relation = counts[RELATIONS]
                keys[2 * at], keys[2 * at + 1], values[at] = space, node, relation
                counts[RELATIONS] += 1
        if relation < 0:
            continue
        number = block.block_number
        if not whole[relation] and (number // BLOCKS_PER_PART + node) % parts != part:
            continue
        chosen[done.count].row, chosen[done.count].relation = k, relation
        done.count += 1
    return done


cdef int64_t slot_place(const Slots *s, int64_t relation, int64_t block) noexcept nogil:
    """Return a page's place in the hash table, or that of the free row where it would be."""
    cdef int64_t key = relation << 32 | block, mask = s.hash_rows - 1
    cdef int64_t at = hashed(relation, block) & mask
    while s.hash_keys[at] >= 0 and s.hash_keys[at] != key:
        at = (at + 1) & mask
    return at


cdef int64_t slot_for(Slots *s, int64_t relation, int64_t block) noexcept nogil:
    """Return a page's slot, made if necessary, or -1 if there is no room."""
    cdef int64_t at = slot_place(s, relation, block), slot
    if s.hash_keys[at] >= 0:
        return s.hash_slots[at]
    slot = s.counts[SLOTS]
    if slot == s.slots_max or 2 * (slot + 1) > s.hash_rows:
        return -1
    s.counts[SLOTS] += 1
    s.hash_keys[at], s.hash_slots[at] = relation << 32 | block, slot
    s.rows[slot].relation, s.rows[slot].block, s.rows[slot].state = relation, block, UNKNOWN
    return slot


cdef Slots slots_with(
    int64_t[::1] hash_keys, int32_t[::1] hash_slots, rows, int64_t[::1] counts
) except *:
    """Return the arrays as one struct, which lives no longer than they do."""
    cdef Slots made
    cdef uint8_t[::1] row_bytes = rows.view(np.uint8)
    assert hash_keys.shape[0] == hash_slots.shape[0], f"{len(hash_keys)=} {len(hash_slots)=}"
    assert hash_keys.shape[0] & (hash_keys.shape[0] - 1) == 0, f"{len(hash_keys)=}"
    made.hash_keys, made.hash_slots = &hash_keys[0], &hash_slots[0]
    made.hash_rows, made.counts = hash_keys.shape[0], &counts[0]
    made.rows, made.slots_max = <SlotRow *>first_of(row_bytes), len(rows)
    return made


def find_relation(
    const int64_t[:, ::1] keys, const int32_t[::1] values, int64_t space, int64_t node
):
    """Return the relation's place in the table, or that of the free row where it would be."""
    assert keys.shape[0] == values.shape[0], f"{len(keys)=} {len(values)=}"
    return relation_place(&keys[0, 0], &values[0], values.shape[0], space, node)


def choose(
    records, blocks, int64_t first, int64_t[:, ::1] keys, int32_t[::1] values,
    const int64_t[::1] low_nodes, bint takes_all, int64_t part, int64_t parts,
    const uint8_t[::1] whole, int64_t[::1] counts, chosen
):
    """Return (the number of chosen references, the place to go on).

    New relations enter the table if they are wanted: because all are, or because their number is in
    `low_nodes` (catalogs of any database).
    """
    cdef const uint8_t[::1] record_bytes = records.view(np.uint8), block_bytes
    cdef uint8_t[::1] chosen_bytes = chosen.view(np.uint8)
    cdef const int64_t *low = NULL
    cdef int64_t count = len(blocks)
    cdef Chosen done
    block_bytes = blocks.view(np.uint8)
    assert keys.shape[0] == values.shape[0] == whole.shape[0], f"{len(keys)=} {len(values)=}"
    assert len(chosen) >= count and parts > 0, f"{len(chosen)=} {count=} {parts=}"
    if low_nodes.shape[0]:
        low = &low_nodes[0]
    with nogil:
        done = choose_rows(
            <const RecordRow *>first_of(record_bytes), <const BlockRow *>first_of(block_bytes),
            first, count, &keys[0, 0], &values[0], values.shape[0], low, low_nodes.shape[0],
            takes_all, part, parts, &whole[0], &counts[0], <ChosenRow *>first_of(chosen_bytes),
        )
    return done.count, done.behind


def slot_of(
    int64_t[::1] hash_keys, int32_t[::1] hash_slots, slots, int64_t[::1] counts,
    int64_t relation, int64_t block
):
    """Return a page's slot, made if necessary, or -1 if there is no room."""
    cdef Slots held = slots_with(hash_keys, hash_slots, slots, counts)
    return slot_for(&held, relation, block)


def rehash(int64_t[::1] hash_keys, int32_t[::1] hash_slots, slots, int64_t used):
    """Enter the slots in use into hash tables that are new and empty."""
    cdef int64_t none[COUNTS]
    cdef Slots held = slots_with(hash_keys, hash_slots, slots, <int64_t[:COUNTS]>none)
    cdef int64_t slot, at, relation, block
    assert used <= held.slots_max and used < held.hash_rows, f"{used=} {len(slots)=}"
    with nogil:
        for slot in range(used):
            relation, block = held.rows[slot].relation, held.rows[slot].block
            at = slot_place(&held, relation, block)
            hash_keys[at], hash_slots[at] = relation << 32 | block, slot


def slots_at(
    int64_t[::1] hash_keys, int32_t[::1] hash_slots, const int64_t[::1] relations,
    const int64_t[::1] blocks, int64_t[::1] into
):
    """Write each page's slot, or -1 if it has none."""
    cdef int64_t none[COUNTS]
    cdef Slots held = slots_with(hash_keys, hash_slots, NO_ROWS, <int64_t[:COUNTS]>none)
    cdef int64_t i, at
    assert len(relations) == len(blocks) == len(into), f"{len(relations)=} {len(blocks)=}"
    with nogil:
        for i in range(relations.shape[0]):
            at = slot_place(&held, relations[i], blocks[i])
            into[i] = hash_slots[at] if hash_keys[at] >= 0 else -1


def make_slots(
    int64_t[::1] hash_keys, int32_t[::1] hash_slots, slots, int64_t[::1] counts,
    const int64_t[::1] keys, int64_t[::1] into
):
    """Give each key a slot. There is room for all of them."""
    cdef Slots held = slots_with(hash_keys, hash_slots, slots, counts)
    cdef int64_t i
    assert len(keys) == len(into), f"{len(keys)=} {len(into)=}"
    with nogil:
        for i in range(keys.shape[0]):
            into[i] = slot_for(&held, keys[i] >> 32, keys[i] & <int64_t>0xFFFFFFFF)
