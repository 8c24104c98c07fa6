"""What of a step is folded, and that one word of it, in one step, makes another sum."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench_prep.errors import OutputsDiffer
from bench_prep.settings import RunSettings

STEPS = 12


def make_decoders(mrope: bool = False) -> list[Any]:
    """Two real runners with vLLM's own preparation."""
    from bench_prep.decode.runner import make_runners
    from bench_prep.decode.steps import Decoder, Workload

    # Odd numbers: buffers that are no multiple of eight or of four bytes.
    settings = RunSettings(
        position=100, max_model_len=256, max_num_reqs=5, max_num_tokens=63, mrope=mrope
    )
    made = []
    for runner in make_runners(settings, 2):
        work = Workload.make(settings, runner.inputs_embeds_size, runner.dtype)
        made.append(Decoder(runner, work, runner._prepare_inputs))
        made[-1].reserve_tokens(2 * STEPS)
    return made


def walk(decoder: Any, fold: Any, spoil: Any = None, steps: int = STEPS) -> None:
    """One slice; `spoil` changes something before a step of this index is folded."""
    fold.begin(7, STEPS)
    decoder.restart()
    for step in range(steps):
        decoder.prepare_step()
        if spoil is not None:
            spoil(decoder, step)
        fold.add()
        decoder.after()


@pytest.mark.vllm
@pytest.mark.parametrize("mrope", [False, True])
def test_every_buffer_counts_in_every_step(mrope: bool) -> None:
    """An element of each buffer is changed in one step, and put right before the next."""
    import numpy as np
    import torch

    from bench_prep.candidate.fold import RETURNED, Fold, first_other
    from bench_prep.snapshot import addresses

    baseline, candidate = make_decoders(mrope)
    one, other = Fold(baseline), Fold(candidate)
    walk(baseline, one)
    walk(candidate, other)
    expected = one.digests()
    assert other.digests() == expected
    walk(baseline, one)
    assert one.digests(rows=False).items() <= expected.items()

    slots = {path for path in expected if "slot_mapping" in path}
    named = {"input_ids", "positions", "seq_lens", "query_start_loc", "optimistic_seq_lens_cpu"}
    assert slots
    assert all(any(path.startswith(name) for path in expected) for name in named)
    assert any("block_table.cpu" in path or "block_table.gpu" in path for path in expected)
    assert any("mrope_positions" in path for path in expected) == mrope

    places = addresses(candidate.runner)
    rng = np.random.default_rng(3)
    for path in expected.keys() - {RETURNED, f"{RETURNED} on the device"}:
        buffer = places[path][1]
        rows = buffer.ndim > 1 and len(buffer) > 3
        flat = (buffer[:1] if rows else buffer).reshape(-1)
        flat = flat.view(torch.uint8 if isinstance(flat, torch.Tensor) else np.uint8)
        at = int(rng.integers(STEPS))
        # What is on the host is folded whole in a slice's last step alone.
        whole = at == STEPS - 1 or (isinstance(buffer, torch.Tensor) and buffer.is_cuda)
        place = int(rng.integers(len(flat) if whole else min(len(flat), 64)))
        other.begin(7, STEPS)
        candidate.restart()
        for step in range(STEPS):
            candidate.prepare_step()
            was = int(flat[place])
            flat[place] = was ^ (step == at)
            other.add()
            flat[place] = was
            candidate.after()
        found = other.digests()
        assert found[path] != expected[path], path
        walk(candidate, other)
        assert other.digests() == expected, path
    assert first_other(expected, expected) is None


@pytest.mark.vllm
def test_the_first_step_and_the_buffer_are_named() -> None:
    from bench_prep.candidate.fold import EveryStep

    baseline, candidate = make_decoders()
    every = EveryStep(baseline, candidate)

    def spoil(decoder: Any, step: int) -> None:
        if step >= 5:
            decoder.runner.query_start_loc.np[3] = 9
        if step == 6:
            decoder.result = (decoder.result[0] + 1, *decoder.result[1:])

    walk(baseline, every.of("baseline_before"))
    every.require_equal("baseline_before")
    walk(candidate, every.of("candidate"))
    every.require_equal("candidate")
    walk(baseline, every.of("baseline_after"))
    every.require_equal("baseline_after")
    walk(candidate, every.of("candidate"), spoil)
    with pytest.raises(
        OutputsDiffer, match=r"position 105 in a timed block: query_start_loc.*step 6 of 12"
    ):
        every.require_equal("candidate")


@pytest.mark.vllm
def test_a_step_that_was_not_seen_is_a_difference() -> None:
    from bench_prep.candidate.fold import Fold

    decoder, _ = make_decoders()
    fold = Fold(decoder)
    walk(decoder, fold, steps=STEPS - 1)
    with pytest.raises(OutputsDiffer, match="only 11 of the 12 steps"):
        fold.digests()


def test_the_kernel_interpreted() -> None:
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-m", "tests.candidate.interpreted_fold"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "same sums" in done.stdout


@pytest.mark.parametrize(
    ("backend", "arch", "warp_size"), [("cuda", 80, 32), ("cuda", 90, 32), ("hip", "gfx942", 64)]
)
def test_the_kernel_compiles_ahead_of_time(
    backend: str, arch: int | str, warp_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget

    from bench_prep.candidate.fold_kernel import fold_kernel
    from bench_prep.fastpath.kernel import source

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    signature = {"table": "*i64", "factors": "*i64", "sums": "*i64", "step": "i32"}
    compiled = triton.compile(
        source(fold_kernel, signature, {"CHUNK": 1024}), target=GPUTarget(backend, arch, warp_size)
    )
    assert compiled.kernel


@pytest.mark.gpu
def test_on_a_device_what_it_holds_is_folded_there() -> None:

    from bench_prep.candidate.fold import EveryStep

    baseline, candidate = make_decoders(mrope=True)
    every = EveryStep(baseline, candidate)
    walk(baseline, every.of("baseline_before"))
    walk(candidate, every.of("candidate"))
    every.require_equal("candidate")
    slots = candidate.runner.input_batch.block_table[0].slot_mapping.gpu
    assert slots.is_cuda
    for place in (0, -1):  # the token's, and the last one of the padding

        def spoil(_: Any, step: int, place: int = place) -> None:
            slots[place] += (step == 5) - (step == 6)

        walk(candidate, every.of("candidate"), spoil)
        with pytest.raises(OutputsDiffer, match=r"position 105 .*slot_mapping\.gpu"):
            every.require_equal("candidate")

    def returns_another(decoder: Any, step: int) -> None:
        if step == 3:
            decoder.result = (decoder.result[0] + 1, *decoder.result[1:])

    walk(candidate, every.of("candidate"), returns_another)
    with pytest.raises(OutputsDiffer, match=r"position 103 .*returned value"):
        every.require_equal("candidate")
    walk(candidate, every.of("candidate"))
    every.require_equal("candidate")


@pytest.mark.vllm
@pytest.mark.parametrize("how", ["in place", "other memory", "other shape"])
def test_a_returned_tensor_that_stays_the_same_object_counts_in_every_step(how: str) -> None:
    import torch

    from bench_prep.candidate.fold import RETURNED, Fold

    (decoder, _) = make_decoders()
    fold = Fold(decoder)
    kept = torch.zeros(3, dtype=torch.int32)
    memory, result = kept.data, (kept, None)

    def spoil(at: int) -> Any:
        def returned(decoder: Any, step: int) -> None:
            decoder.result = result
            kept.data = memory
            kept[1] = 0
            if step == at and how == "in place":
                kept[1] = 7
            elif step == at and how == "other memory":
                kept.data = torch.ones(3, dtype=torch.int32)
            elif step == at:
                kept.data = memory[:2]

        return returned

    walk(decoder, fold, spoil(-1))
    expected = fold.digests()
    walk(decoder, fold, spoil(-1))
    assert fold.digests(rows=False)[RETURNED] == expected[RETURNED]
    for step in (0, 4, STEPS - 1):
        walk(decoder, fold, spoil(step))
        assert fold.digests()[RETURNED] != expected[RETURNED], step
