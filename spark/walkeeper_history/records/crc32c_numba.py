"""CRC-32C inside compiled code: x86's instruction if the machine has it, else tables.

`update_word` and `update_byte` take the running value (not inverted) and eight or one bytes.
`update_words` takes a stretch of words. The instruction is reached as an LLVM intrinsic. Without
these 16 lines of code generation, compiled code would call into Python for each record. The
instruction takes three cycles and one can start in each, so a long stretch is cut in three lanes.
Tables move a lane's result past the bytes of the lanes after it (a CRC is linear).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import njit, types
from numba.extending import intrinsic

POLYNOMIAL = 0x82F63B78  # reflected


def has_instruction() -> bool:
    """Return whether this machine has SSE 4.2's crc32."""
    features = binding.get_host_cpu_features()
    return "x86" in binding.get_process_triple() and bool(features.get("sse4.2"))


def _intrinsic(name: str, crc_bits: int, value_bits: int) -> Any:
    crc_type, value_type = getattr(types, f"uint{crc_bits}"), getattr(types, f"uint{value_bits}")

    def instruction(typing_context: Any, crc: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            integers = [ir.IntType(crc_bits), ir.IntType(value_bits)]
            function_type = ir.FunctionType(integers[0], integers)
            function = builder.module.globals.get(name)
            function = function or ir.Function(builder.module, function_type, name)
            return builder.call(function, list(arguments))

        return crc_type(crc_type, value_type), generate

    return intrinsic(instruction)


def _tables() -> Any:
    """Return tables for slicing by eight: tables[k][b] is byte b's value before k zero bytes."""
    tables = np.zeros((8, 256), np.uint64)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (POLYNOMIAL if value & 1 else 0)
        tables[0, byte] = value
    for k in range(1, 8):
        for byte in range(256):
            value = int(tables[k - 1, byte])
            tables[k, byte] = value >> 8 ^ int(tables[0, value & 255])
    return tables


_TABLES = _tables()
LANE_WORDS = 64


def _moved_by(words: int) -> Any:
    """Return tables[k][b]: the CRC's value if only byte k is set, to b, and zero words follow."""
    basis = []
    for bit in range(32):
        value = 1 << bit
        for _ in range(8 * words):
            value = value >> 8 ^ int(_TABLES[0, value & 255])
        basis.append(value)
    tables = np.zeros((4, 256), np.uint64)
    for k in range(4):
        for byte in range(256):
            for bit in range(8):
                tables[k, byte] ^= np.uint64(basis[8 * k + bit] if byte >> bit & 1 else 0)
    return tables


_BY_ONE_LANE, _BY_TWO_LANES = _moved_by(LANE_WORDS), _moved_by(2 * LANE_WORDS)


@njit(inline="always")
def _moved(tables: Any, crc: Any) -> Any:
    low, byte = np.uint64(255), np.uint64(8)
    return (
        tables[0, crc & low]
        ^ tables[1, crc >> byte & low]
        ^ tables[2, crc >> np.uint64(16) & low]
        ^ tables[3, crc >> np.uint64(24)]
    )


@njit(inline="always")
def table_update_byte(crc: Any, byte: Any) -> Any:
    index = (crc ^ np.uint64(byte)) & np.uint64(255)
    return _TABLES[0, index] ^ (crc >> np.uint64(8))


@njit(inline="always")
def table_update_word(crc: Any, word: Any) -> Any:
    mixed = crc ^ word
    value = np.uint64(0)
    for k in range(8):
        value ^= _TABLES[7 - k, (mixed >> np.uint64(8 * k)) & np.uint64(255)]
    return value


if has_instruction():
    _word = _intrinsic("llvm.x86.sse42.crc32.64.64", 64, 64)
    _byte = _intrinsic("llvm.x86.sse42.crc32.32.8", 32, 8)

    @njit(inline="always")
    def update_word(crc: Any, word: Any) -> Any:
        return _word(crc, word)

    @njit(inline="always")
    def update_byte(crc: Any, byte: Any) -> Any:
        return np.uint64(_byte(np.uint32(crc), byte))

else:
    update_word, update_byte = table_update_word, table_update_byte


@njit(inline="always")
def update_words(crc: Any, words: Any, begin: Any, end: Any) -> Any:
    """Return the CRC after words[begin:end]."""
    while end - begin >= 3 * LANE_WORDS:
        second, third = np.uint64(0), np.uint64(0)
        for k in range(begin, begin + LANE_WORDS):
            crc = update_word(crc, words[k])
            second = update_word(second, words[k + LANE_WORDS])
            third = update_word(third, words[k + 2 * LANE_WORDS])
        crc = _moved(_BY_TWO_LANES, crc) ^ _moved(_BY_ONE_LANE, second) ^ third
        begin += 3 * LANE_WORDS
    for k in range(begin, end):
        crc = update_word(crc, words[k])
    return crc
