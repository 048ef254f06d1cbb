#version 450
/* SPDX-License-Identifier: Apache-2.0
 * Whether the compiler knows cooperative matrices of KHR (KEDGE_MATRICES 2) or of NV (1); cmake/vulkan.cmake asks. */
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#if KEDGE_MATRICES == 2
#extension GL_KHR_cooperative_matrix : require
#define MATRIX coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>
#else
#extension GL_NV_cooperative_matrix : require
#define MATRIX fcoopmatNV<16, gl_ScopeSubgroup, 16, 16>
#endif
layout(local_size_x = 32) in;
void main() {
  MATRIX a = MATRIX(1.0);
  a += a;
}
