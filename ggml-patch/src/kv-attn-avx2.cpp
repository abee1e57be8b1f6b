// compiled with -mavx2 -mfma -mf16c
#include "kv-attn.h"

#ifdef __F16C__

#include <immintrin.h>

#define KV_LANES 8
#define kv_load_f16(p) ((kv_vf) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) (p))))

#include "kv-attn-simd.h"

extern const kv_attn_fn kv_attn_avx2 = kv_attn_simd;

#else

extern const kv_attn_fn kv_attn_avx2 = nullptr;

#endif
