"""The weights are the same in every process, differ by name, and are none of a quantized model."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.vllm


def test_by_name_and_reproducible() -> None:
    from bench_prep.engine.vllm.weights import GAIN, draw

    def drawn(name: str) -> torch.Tensor:
        weight = torch.zeros(300, 400)
        draw(name, weight)
        return weight

    one = drawn("layers.0.qkv_proj.weight")
    assert torch.equal(one, drawn("layers.0.qkv_proj.weight"))
    assert not torch.equal(one, drawn("layers.1.qkv_proj.weight"))
    assert one.std().item() == pytest.approx(GAIN / 20, rel=0.01)


@pytest.mark.parametrize("initial", [0.0, 1.0])
def test_a_norm_s_factor_is_around_zero(initial: float) -> None:
    """Whether the model multiplies by w, initially 1, or by 1 + w, initially 0."""
    from bench_prep.engine.vllm.weights import draw

    weight = torch.full((10_000,), initial)
    draw("layers.0.input_layernorm.weight", weight)
    assert (weight + 1 - initial).mean().item() == pytest.approx(0, abs=0.05)
    assert weight.std().item() == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_quantized(dtype: torch.dtype) -> None:
    from bench_prep.engine.vllm.weights import draw

    with pytest.raises(TypeError, match="quantized"):
        draw("layers.0.qkv_proj.weight", torch.zeros(4, 4).to(dtype))
