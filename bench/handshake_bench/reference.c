/* The scan by hand: what a C programmer with intrinsics writes for these two predicates.
 * Tiles of 4,096 inner tuples stay in the first-level cache; 64 inner tuples per step; bounds computed once
 * per outer tuple. AVX-512 where the processor has it, else AVX2. */
#include <immintrin.h>
#include <math.h>
#include <stdint.h>

#define TILE 4096
#define MIN(a, b) ((a) < (b) ? (a) : (b))

static inline long emit(uint64_t mask, int i, long j, int *out_i, int *out_j, long count) {
    while (mask) {
        out_i[count] = i;
        out_j[count++] = (int)(j + __builtin_ctzll(mask));
        mask &= mask - 1;
    }
    return count;
}

#if defined(__AVX512F__) && defined(__AVX512DQ__)
typedef struct { __m512i xlo, xhi; __m512 ylo, yhi; } band_bounds;

static inline uint64_t band16(const int *a, const float *b, const band_bounds *p) {
    __m512i av = _mm512_loadu_si512(a);
    __m512 bv = _mm512_loadu_ps(b);
    __mmask16 m = _mm512_cmpge_epi32_mask(av, p->xlo);
    m = _mm512_mask_cmple_epi32_mask(m, av, p->xhi);
    m = _mm512_mask_cmp_ps_mask(m, bv, p->ylo, _CMP_GE_OQ);
    return _mm512_mask_cmp_ps_mask(m, bv, p->yhi, _CMP_LE_OQ);
}

static inline uint64_t general16(const int *a, const float *b, __m512i x, __m512 y, __m512 limit) {
    __m512i av = _mm512_loadu_si512(a);
    __m512 bv = _mm512_loadu_ps(b);
    __mmask16 m = _mm512_cmple_epi32_mask(_mm512_abs_epi32(_mm512_sub_epi32(x, av)), _mm512_set1_epi32(2));
    m |= _mm512_cmp_ps_mask(y, _mm512_add_ps(bv, _mm512_set1_ps(9990)), _CMP_GT_OQ);
    return _mm512_mask_cmp_ps_mask(m, _mm512_abs_ps(_mm512_sub_ps(y, bv)), limit, _CMP_LE_OQ);
}
#define STEP 16
#define BAND_BOUNDS(x, y) {_mm512_set1_epi32((x) - 10), _mm512_set1_epi32((x) + 10), \
                           _mm512_set1_ps((y) - 10), _mm512_set1_ps((y) + 10)}
#define BAND band16
#define GENERAL(a, b) general16(a, b, _mm512_set1_epi32(x[i]), _mm512_set1_ps(y[i]), _mm512_set1_ps(w[i] + 9990))
#else
typedef struct { __m256i xlo, xhi; __m256 ylo, yhi; } band_bounds;

static inline uint64_t band8(const int *a, const float *b, const band_bounds *p) {
    __m256i av = _mm256_loadu_si256((const __m256i *)a);
    __m256 bv = _mm256_loadu_ps(b);
    __m256i outside = _mm256_or_si256(_mm256_cmpgt_epi32(p->xlo, av), _mm256_cmpgt_epi32(av, p->xhi));
    __m256 inside = _mm256_and_ps(_mm256_cmp_ps(bv, p->ylo, _CMP_GE_OQ), _mm256_cmp_ps(bv, p->yhi, _CMP_LE_OQ));
    return (uint64_t)_mm256_movemask_ps(_mm256_andnot_ps(_mm256_castsi256_ps(outside), inside));
}

static inline uint64_t general8(const int *a, const float *b, __m256i x, __m256 y, __m256 limit) {
    __m256 sign = _mm256_set1_ps(-0.0f);
    __m256i av = _mm256_loadu_si256((const __m256i *)a);
    __m256 bv = _mm256_loadu_ps(b);
    __m256i far = _mm256_cmpgt_epi32(_mm256_abs_epi32(_mm256_sub_epi32(x, av)), _mm256_set1_epi32(2));
    __m256 over = _mm256_cmp_ps(y, _mm256_add_ps(bv, _mm256_set1_ps(9990)), _CMP_GT_OQ);
    __m256 either = _mm256_or_ps(_mm256_xor_ps(_mm256_castsi256_ps(far), _mm256_castsi256_ps(_mm256_set1_epi32(-1))), over);
    __m256 close = _mm256_cmp_ps(_mm256_andnot_ps(sign, _mm256_sub_ps(y, bv)), limit, _CMP_LE_OQ);
    return (uint64_t)_mm256_movemask_ps(_mm256_and_ps(either, close));
}
#define STEP 8
#define BAND_BOUNDS(x, y) {_mm256_set1_epi32((x) - 10), _mm256_set1_epi32((x) + 10), \
                           _mm256_set1_ps((y) - 10), _mm256_set1_ps((y) + 10)}
#define BAND band8
#define GENERAL(a, b) general8(a, b, _mm256_set1_epi32(x[i]), _mm256_set1_ps(y[i]), _mm256_set1_ps(w[i] + 9990))
#endif

long band(const int *x, const float *y, const float *w, const int *a, const float *b, long outer, long inner,
          int *out_i, int *out_j) {
    long count = 0;
    for (long tile = 0; tile < inner; tile += TILE)
        for (long i = 0; i < outer; i++) {
            band_bounds p = BAND_BOUNDS(x[i], y[i]);
            for (long j = tile; j < MIN(tile + TILE, inner); j += 64) {
                uint64_t mask = 0;
#pragma GCC unroll 8
                for (int k = 0; k < 64; k += STEP) mask |= BAND(a + j + k, b + j + k, &p) << k;
                if (mask) count = emit(mask, (int)i, j, out_i, out_j, count);
            }
        }
    return count;
}

long general(const int *x, const float *y, const float *w, const int *a, const float *b, long outer, long inner,
             int *out_i, int *out_j) {
    long count = 0;
    for (long tile = 0; tile < inner; tile += TILE)
        for (long i = 0; i < outer; i++)
            for (long j = tile; j < MIN(tile + TILE, inner); j += 64) {
                uint64_t mask = 0;
#pragma GCC unroll 8
                for (int k = 0; k < 64; k += STEP) mask |= GENERAL(a + j + k, b + j + k) << k;
                if (mask) count = emit(mask, (int)i, j, out_i, out_j, count);
            }
    return count;
}

/* The band scan by codes of 16 bits, four per unit: 32 tuples to a vector, eight vectors to a look. */
void encode(const int *a, const float *b, long inner, uint16_t *code_a, uint16_t *code_b) {
    for (long j = 0; j < inner; j++) {
        code_a[j] = (uint16_t)(4 * a[j]);
        code_b[j] = (uint16_t)(4 * b[j]);
    }
}

#if defined(__AVX512BW__)
static inline uint32_t near32(__m512i x, __m512i y, const uint16_t *a, const uint16_t *b) {
    const __m512i width = _mm512_set1_epi16(83);
    __m512i nearest = _mm512_set1_epi16(-1);
#pragma GCC unroll 8
    for (int k = 0; k < 256; k += 32) {
        __m512i p = _mm512_sub_epi16(x, _mm512_loadu_si512(a + k)), q = _mm512_sub_epi16(y, _mm512_loadu_si512(b + k));
        nearest = _mm512_min_epu16(nearest, _mm512_max_epu16(p, q));
    }
    return _mm512_cmple_epu16_mask(nearest, width);
}

/* Inner tuples in multiples of 256. */
long coded(const int *x, const float *y, const int *a, const float *b, const uint16_t *code_a, const uint16_t *code_b,
           long outer, long inner, int *out_i, int *out_j) {
    long count = 0;
    for (long tile = 0; tile < inner; tile += TILE)
        for (long i = 0; i < outer; i++) {
            __m512i p = _mm512_set1_epi16((short)(4 * x[i] + 41)), q = _mm512_set1_epi16((short)(uint16_t)(4 * y[i] + 41));
            for (long j = tile; j < MIN(tile + TILE, inner); j += 256)
                if (__builtin_expect(near32(p, q, code_a + j, code_b + j), 0))
                    for (long k = j; k < j + 256; k++)
                        if (x[i] >= a[k] - 10 && x[i] <= a[k] + 10 && y[i] >= b[k] - 10 && y[i] <= b[k] + 10) {
                            out_i[count] = (int)i;
                            out_j[count++] = (int)k;
                        }
        }
    return count;
}
#endif
