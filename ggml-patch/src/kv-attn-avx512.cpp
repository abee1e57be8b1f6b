// compiled with -mavx512f
#include "kv-attn.h"

#ifdef __AVX512F__

#include <immintrin.h>

#define KV_LANES 16
#define kv_load_f16(p) ((kv_vf) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) (p))))

#include "kv-attn-simd.h"

extern const kv_attn_fn kv_attn_avx512 = kv_attn_simd;

#else

extern const kv_attn_fn kv_attn_avx512 = nullptr;

#endif
