/* SPDX-License-Identifier: Apache-2.0
 *
 * What every shader includes first: the record of a call, typed pointers, loads and stores of f32 and bf16, sums
 * of a subgroup, exact functions. A shader's file is its op's family; KEDGE_OP_<name> says which of its passes is
 * compiled. backends/vulkan/vulkan.h has the other side.
 */
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int16 : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_ballot : require
#extension GL_KHR_shader_subgroup_vote : require

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL = 1;
layout(constant_id = 1) const bool BF16 = false; /* storage of x tensors */
layout(constant_id = 2) const uint S0 = 1;
layout(constant_id = 3) const uint S1 = 1;
layout(constant_id = 4) const uint S2 = 1;
layout(constant_id = 5) const uint S3 = 1;
layout(constant_id = 6) const uint S4 = 1;
layout(constant_id = 7) const uint S5 = 1;
layout(constant_id = 8) const uint S6 = 1;
layout(constant_id = 9) const uint S7 = 1;

#define kedge_u32         uint
#define kedge_real        float
#define KEDGE_ARGS(name)  struct args_##name
#define KEDGE_CAT_(a, b)  a##b
#define KEDGE_CAT(a, b)   KEDGE_CAT_(a, b)
float kedge_exp(float x);
float kedge_log(float x);
#include "core/args.h"
#include "core/scalar.h"

layout(buffer_reference, buffer_reference_align = 4, std430) buffer F32 { float v[]; };
layout(buffer_reference, buffer_reference_align = 2, std430) buffer U16 { uint16_t v[]; };
layout(buffer_reference, buffer_reference_align = 4, std430) buffer I32 { int v[]; };
layout(buffer_reference, buffer_reference_align = 4, scalar) buffer F32x4 { vec4 v; };
layout(buffer_reference, buffer_reference_align = 2, scalar) buffer U16x4 { u16vec4 v; };
layout(buffer_reference, buffer_reference_align = 8, std430) readonly buffer Parts { uint64_t at[]; };

/* The record of the call. OP is the op whose arguments it has. */
layout(buffer_reference, buffer_reference_align = 8, std430) readonly buffer Call {
  uint64_t in_[10], out_[4], scratch;
  uint pitch[10];
  uint in_bf16, out_bf16;
  KEDGE_CAT(args_, OP) args;
};

layout(push_constant) uniform Push {
  uint64_t call;
  uint first, end;
  uint number[4];
} push;

/* The record, read once by load_call(): what is read again after a store is fetched again. */
KEDGE_CAT(args_, OP) ARGS;
uint64_t in_at[10], out_at[4], scratch_at;
uint pitch_of[10];
void load_call() {
  Call call = Call(push.call);
  ARGS = call.args;
  [[unroll]] for (int i = 0; i < 10; i++) {
    in_at[i] = call.in_[i];
    pitch_of[i] = call.pitch[i];
  }
  [[unroll]] for (int i = 0; i < 4; i++) out_at[i] = call.out_[i];
  scratch_at = call.scratch;
}
#define IN(i)    in_at[i]
#define OUT(i)   out_at[i]
#define PITCH(i) pitch_of[i]
#define SCRATCH  scratch_at

/* This workgroup's number; leave where it is not below push.end. */
#define GROUP (push.first + gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x)
#define LANE  gl_LocalInvocationID.x

uint bf16_bits(float value) {
  uint u = floatBitsToUint(value);
  if ((u & 0x7fffffffu) > 0x7f800000u) return (u >> 16) | 0x40u;
  return (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
}
float load_bf16(uint64_t at, uint i) {
  return uintBitsToFloat(uint(U16(at).v[i]) << 16);
}
float load_f(uint64_t at, uint i) {
  return F32(at).v[i];
}
void store_f(uint64_t at, uint i, float value) {
  F32(at).v[i] = value;
}
int load_i(uint64_t at, uint i) {
  return I32(at).v[i];
}
void store_i(uint64_t at, uint i, int value) {
  I32(at).v[i] = value;
}
/* Element i of a tensor whose dtype is known here. */
float load_as(bool bf16, uint64_t at, uint i) {
  if (bf16) return load_bf16(at, i);
  return load_f(at, i);
}
/* Variables of 16 bits make compilers declare what constants of 16 bits need. */
void store_as(bool bf16, uint64_t at, uint i, float value) {
  if (bf16) {
    uint16_t bits = uint16_t(bf16_bits(value));
    U16(at).v[i] = bits;
  } else {
    store_f(at, i, value);
  }
}
/* Four elements side by side, from element i on. */
vec4 load4_as(bool bf16, uint64_t at, uint i) {
  if (bf16) return uintBitsToFloat(uvec4(U16x4(at + 2ul * uint64_t(i)).v) << 16);
  return F32x4(at + 4ul * uint64_t(i)).v;
}
void store4_as(bool bf16, uint64_t at, uint i, vec4 x) {
  if (bf16) {
    u16vec4 bits = u16vec4(bf16_bits(x.x), bf16_bits(x.y), bf16_bits(x.z), bf16_bits(x.w));
    U16x4(at + 2ul * uint64_t(i)).v = bits;
  } else {
    F32x4(at + 4ul * uint64_t(i)).v = x;
  }
}
float load_x(uint64_t at, uint i) {
  return load_as(BF16, at, i);
}
void store_x(uint64_t at, uint i, float value) {
  store_as(BF16, at, i, value);
}
/* Bytes of n elements of x. */
uint64_t bytes_x(uint n) {
  return uint64_t(n) * (BF16 ? 2u : 4u);
}

#define INFINITY uintBitsToFloat(0x7f800000u)

/* exp and log to an ulp or so whatever the driver's are: a power of two apart, then a polynomial. */
float kedge_exp(float x) {
  if (x != x) return x;
  float n = floor(clamp(x, -150.0, 130.0) * 1.44269504 + 0.5);
  precise float r = fma(n, -0.693359375, clamp(x, -104.0, 89.0));
  r = fma(n, 2.12194440e-4, r);
  float p = 1.9875691500e-4;
  p = fma(p, r, 1.3981999507e-3);
  p = fma(p, r, 8.3334519073e-3);
  p = fma(p, r, 4.1665795894e-2);
  p = fma(p, r, 1.6666665459e-1);
  p = fma(p, r, 5.0000001201e-1);
  p = fma(p * r, r, r) + 1.0;
  int e = int(n), half_ = e / 2;
  if (x > 88.73) return INFINITY;
  if (x < -103.98) return 0.0;
  return p * uintBitsToFloat(uint(half_ + 127) << 23) * uintBitsToFloat(uint(e - half_ + 127) << 23);
}
float kedge_log(float x) {
  if (!(x > 0.0)) return x == 0.0 ? -INFINITY : uintBitsToFloat(0x7fc00000u);
  if (x == INFINITY) return x;
  int e = 0;
  if (x < 1.17549435e-38) {
    x *= 8388608.0;
    e = -23;
  }
  uint u = floatBitsToUint(x);
  e += int(u >> 23) - 126;
  float m = uintBitsToFloat((u & 0x007fffffu) | 0x3f000000u); /* in [0.5, 1) */
  if (m < 0.70710678) {
    m = m + m;
    e -= 1;
  }
  precise float r = m - 1.0;
  float z = r * r;
  float p = 7.0376836292e-2;
  p = fma(p, r, -1.1514610310e-1);
  p = fma(p, r, 1.1676998740e-1);
  p = fma(p, r, -1.2420140846e-1);
  p = fma(p, r, 1.4249322787e-1);
  p = fma(p, r, -1.6668057665e-1);
  p = fma(p, r, 2.0000714765e-1);
  p = fma(p, r, -2.4999993993e-1);
  p = fma(p, r, 3.3333331174e-1);
  precise float y = p * r * z;
  y = fma(float(e), -2.12194440e-4, y);
  y = fma(z, -0.5, y);
  return fma(float(e), 0.693359375, r + y);
}

