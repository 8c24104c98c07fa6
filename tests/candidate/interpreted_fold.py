"""Run as a script: the kernel of the fold in Triton's interpreter against sums by NumPy.

Triton decides when it is imported whether it interprets, so this is a process of its own.
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_prep.candidate.fold_kernel import DeviceSums

DTYPES = (torch.int64, torch.int32, torch.bool, torch.float32, torch.bfloat16)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    sizes=st.lists(st.sampled_from([1, 2, 3, 129, 4095, 4096, 9001]), min_size=1, max_size=5),
    steps=st.integers(1, 3),
)
def same_sums(seed: int, sizes: list[int], steps: int) -> None:
    rng = np.random.default_rng(seed)
    buffers = [
        torch.from_numpy(rng.integers(0, 2, size)).to(DTYPES[rng.integers(len(DTYPES))])
        for size in sizes
    ]
    one = DeviceSums(buffers, 16)
    factors = rng.integers(-(2**63), 2**63 - 1, max(one.longest, 256), np.int64) | 1
    one.begin(factors, steps)
    returned = torch.tensor([7, 8])
    expected = np.zeros((steps, len(buffers) + 1), np.int64)
    for step in range(steps):
        for index, buffer in enumerate(buffers):
            buffer[rng.integers(len(buffer))] = 1 - step % 2
            small = buffer.view(torch.uint8).numpy()
            words = small.view(np.int32) if small.nbytes % 4 == 0 else small
            expected[step, index] = words.astype(np.int64) @ factors[: len(words)]
        # The returned numbers are int64, folded in words of four bytes.
        expected[step, -1] = 7 * factors[0] + 8 * factors[2]
        one.add(step, [returned])
    assert np.array_equal(one.sums(), expected)


if __name__ == "__main__":
    same_sums()
    print("same sums")
