"""Corrections that an official release needs before its V1 runner runs here.

vLLM 0.32.0 expects Triton's CPU backend, which is on no package index. Its stand-in in C++ for
machines without it kept a parameter that the kernel it stands in for no longer has, so every call
fails. The correction removes that parameter; it touches no file that is timed or compared, and
every result says that the worktree is not the bare release.
"""

from __future__ import annotations

from pathlib import Path

from bench_prep.errors import Missing

_STAND_IN = "vllm/utils/cpu_triton_utils.py"
_CORRECTIONS: dict[str, list[tuple[str, str, str]]] = {
    "0.32.0": [
        (
            _STAND_IN,
            "    block_table_stride: int,  # max_num_blocks_per_req\n"
            "    block_size: int,\n"
            "    slot_mapping: torch.Tensor,  # [max_num_tokens], int64\n"
            "    KV_CACHE_BLOCK_SIZE: int | None = None,\n"
            "    BLOCKS_PER_KV_BLOCK: int = 1,\n",
            "    block_table_stride: int,  # max_num_blocks_per_req\n"
            "    slot_mapping: torch.Tensor,  # [max_num_tokens], int64\n"
            "    KV_CACHE_BLOCK_SIZE: int,\n",
        ),
        (
            _STAND_IN,
            "    if BLOCKS_PER_KV_BLOCK != 1:\n"
            "        assert block_size * BLOCKS_PER_KV_BLOCK == KV_CACHE_BLOCK_SIZE\n",
            "",
        ),
        (
            _STAND_IN,
            "        slot_mapping,\n        block_size,\n    )\n\n\ndef _ensure_int64",
            "        slot_mapping,\n        KV_CACHE_BLOCK_SIZE,\n    )\n\n\ndef _ensure_int64",
        ),
    ],
}


def apply_corrections(root: Path, version: str) -> None:
    """Correct the unpacked release at `root`.

    Raises:
        Missing: the release is not the one that the correction was written for.
    """
    for name, old, new in _CORRECTIONS.get(version, []):
        path = root / name
        text = path.read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise Missing(
                f"{name} of vLLM {version} is not the file that the correction was written for",
                "give a worktree of your own with --worktree",
            )
        path.write_text(text.replace(old, new), encoding="utf-8")
