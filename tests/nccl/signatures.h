/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KEDGE_TESTS_NCCL_SIGNATURES_H
#define KEDGE_TESTS_NCCL_SIGNATURES_H

/* The version of the nccl.h that the table was compared with when the tests were built; 0: there was none. */
unsigned nccl_compared(void);

#endif
