"""CRC-32C inside compiled code: x86's instruction where the machine has it, else tables.

`update_word` and `update_byte` take the running value (not inverted) and eight or one bytes. The
instruction is reached as an LLVM intrinsic; 16 lines of code generation for what would otherwise
be a call from compiled code into Python for each record.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import njit, types
from numba.extending import intrinsic

POLYNOMIAL = 0x82F63B78  # reflected


def has_instruction() -> bool:
    """Whether this machine has SSE 4.2's crc32."""
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
    """Slicing by eight: tables[k][b] is the value of byte b with k zero bytes behind it."""
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
