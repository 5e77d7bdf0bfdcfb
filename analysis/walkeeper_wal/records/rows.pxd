# cython: language_level=3
"""The rows of a walk for compiled code: those of walk.RECORD_ROW and walk.BLOCK_ROW."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef packed struct RecordRow:
    uint64_t prev_lsn
    uint32_t offset, length, xid, toplevel_xid, main_offset, main_length, fpi_length
    uint16_t origin
    uint8_t block_count, info, rmid
    uint8_t padding[3]

cdef packed struct BlockRow:
    uint32_t record, tablespace, database, relfilenode, block_number, data_offset, image_offset
    uint16_t data_length, image_length, hole_offset, hole_length
    uint8_t block_id, flags, image_info, padding
