/* CRC-32C: by x86's instruction where the machine has it, else by a table. */

#include <stdint.h>
#include <string.h>

#define POLYNOMIAL 0x82F63B78u

static uint32_t crc_table[256];

static inline uint32_t by_bit(uint32_t crc)
{
    return crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
}

static uint32_t table_bytes(uint32_t crc, const uint8_t *at, int64_t size)
{
    while (size-- > 0)
        crc = crc >> 8 ^ crc_table[(crc ^ *at++) & 255];
    return crc;
}

#if defined(__x86_64__)
#include <nmmintrin.h>
#include <wmmintrin.h>

#define WIDE_WORDS 64
#define NARROW_WORDS 8

/* The factors that move a CRC over one lane and over two: x^(bits - 33), bits in reverse. */
static uint32_t over_wide[2], over_narrow[2];

static uint32_t factor_over(int words)
{
    uint32_t value = 1u << 31;
    for (int power = 0; power < 64 * words - 33; power++)
        value = by_bit(value);
    return value;
}

static inline uint64_t word_at(const uint8_t *at)
{
    uint64_t word;
    memcpy(&word, at, 8);
    return word;
}

__attribute__((target("sse4.2,pclmul")))
static inline uint32_t moved(uint64_t crc, uint32_t factor)
{
    __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128(crc), _mm_cvtsi32_si128(factor), 0);
    return (uint32_t) _mm_crc32_u64(0, _mm_cvtsi128_si64(product));
}

/* An instruction takes three cycles and one can start in each: three lanes of a stretch. */
__attribute__((target("sse4.2,pclmul")))
static inline uint32_t three_lanes(
    uint32_t crc, const uint8_t *at, const int words, const uint32_t *factors)
{
    uint64_t first = crc, second = 0, third = 0;
    for (int k = 0; k < words; k++, at += 8) {
        first = _mm_crc32_u64(first, word_at(at));
        second = _mm_crc32_u64(second, word_at(at + 8 * words));
        third = _mm_crc32_u64(third, word_at(at + 16 * words));
    }
    return moved(first, factors[1]) ^ moved(second, factors[0]) ^ (uint32_t) third;
}

__attribute__((target("sse4.2,pclmul")))
static uint32_t instruction_bytes(uint32_t crc, const uint8_t *at, int64_t size)
{
    for (; size >= 24 * WIDE_WORDS; size -= 24 * WIDE_WORDS, at += 24 * WIDE_WORDS)
        crc = three_lanes(crc, at, WIDE_WORDS, over_wide);
    for (; size >= 24 * NARROW_WORDS; size -= 24 * NARROW_WORDS, at += 24 * NARROW_WORDS)
        crc = three_lanes(crc, at, NARROW_WORDS, over_narrow);
    for (; size >= 8; size -= 8, at += 8)
        crc = (uint32_t) _mm_crc32_u64(crc, word_at(at));
    while (size-- > 0)
        crc = _mm_crc32_u8(crc, *at++);
    return crc;
}

static void make_factors(void)
{
    for (int lanes = 1; lanes <= 2; lanes++) {
        over_wide[lanes - 1] = factor_over(lanes * WIDE_WORDS);
        over_narrow[lanes - 1] = factor_over(lanes * NARROW_WORDS);
    }
}

static int has_instruction(void)
{
    return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
}
#else
#define instruction_bytes table_bytes
static void make_factors(void) {}
static int has_instruction(void) { return 0; }
#endif

static int uses_instruction;

static void make_tables(void)
{
    for (int byte = 0; byte < 256; byte++) {
        uint32_t value = byte;
        for (int i = 0; i < 8; i++)
            value = by_bit(value);
        crc_table[byte] = value;
    }
    make_factors();
    uses_instruction = has_instruction();
}

static inline uint32_t crc_bytes(uint32_t crc, const uint8_t *at, int64_t size)
{
    return uses_instruction ? instruction_bytes(crc, at, size) : table_bytes(crc, at, size);
}

/* The CRC of a record: its data, then its header up to the CRC itself. */
static uint32_t crc_of(const uint8_t *record, int64_t length)
{
    return ~crc_bytes(crc_bytes(~0u, record + 24, length - 24), record, 20);
}
