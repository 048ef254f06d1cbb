# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/safetensors/: files by the Python safetensors library, and what they hold.

`mixed.safetensors` has every dtype that numpy and torch can give it, a scalar and empty tensors; value i of a tensor is i
in its dtype (BOOL: i odd). `convert.safetensors` has f32 bit patterns and torch's bf16 and f16 of them. Deterministic.
"""
import os

import torch
from safetensors.torch import save_file

here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "safetensors")
os.makedirs(here, exist_ok=True)

dtypes = {
    "u8": torch.uint8, "i8": torch.int8, "e5m2": torch.float8_e5m2, "e4m3": torch.float8_e4m3fn, "u16": torch.uint16,
    "i16": torch.int16, "f16": torch.float16, "bf16": torch.bfloat16, "u32": torch.uint32, "i32": torch.int32,
    "f32": torch.float32, "u64": torch.uint64, "i64": torch.int64, "f64": torch.float64,
}
tensors = {name: torch.arange(6).reshape(2, 3).to(dtype) for name, dtype in dtypes.items()}
tensors["bool"] = (torch.arange(6) % 2 == 1).reshape(2, 3)
tensors["scalar"] = torch.tensor(2.5)
tensors["empty"] = torch.zeros(0)
tensors["empty.2d"] = torch.zeros(3, 0, 2, dtype=torch.bfloat16)
tensors["name with \"quotes\", \\ and é"] = torch.tensor([1.0])
save_file(tensors, os.path.join(here, "mixed.safetensors"), metadata={"format": "pt", "made": "by the Python library"})

torch.manual_seed(1)
special = [0, 0x80000000, 1, 0x807FFFFF, 0x33000000, 0x33000001, 0x33800000, 0x387FE000, 0x387FF000, 0x38800000,
           0x3F800000, 0x3F808000, 0x3F818000, 0x3F800FFF, 0x3F801000, 0x3F801001, 0x3F803000, 0x477FE000, 0x477FEFFF,
           0x477FF000, 0x47800000, 0x7F7FFFFF, 0x7F7F7FFF, 0x7F7F8000, 0x7F800000, 0xFF800000, 0x33C00000, 0x34200000]
random = torch.randint(-(2**31), 2**31, (1024,), dtype=torch.int64)
near = torch.randint(0x33000000, 0x47900000, (1024,), dtype=torch.int64)
bits = torch.cat([torch.tensor(special, dtype=torch.int64), random & 0xFFFFFFFF, near])
bits = bits[(bits & 0x7FFFFFFF) <= 0x7F800000]  # no NaN: its payload is nobody's contract
f32 = torch.where(bits >= 2**31, bits - 2**32, bits).to(torch.int32).view(torch.float32)
save_file({"f32": f32, "bf16": f32.bfloat16(), "f16": f32.half(), "f16.back": f32.half().float()},
          os.path.join(here, "convert.safetensors"), metadata={"format": "pt"})
