// NEON of 64-bit Arm, which every such CPU has; it converts f16 without further flags
#include "kv-attn.h"

#ifdef __aarch64__

#include <arm_neon.h>

#define KV_LANES 4
#define kv_load_f16(p) ((kv_vf) vcvt_f32_f16(vld1_f16((const __fp16 *) (p))))

#include "kv-attn-simd.h"

extern const kv_attn_fn kv_attn_neon = kv_attn_simd;

#else

extern const kv_attn_fn kv_attn_neon = nullptr;

#endif
