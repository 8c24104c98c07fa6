"""Compilers, the garbage collector and the allocator in timed steps; all of them real."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench_prep.measure.clocks import CudaDevice, time_block
from bench_prep.measure.disturbances import Disturbances

WARMUP, ITERS = 2, 3


class Steps:
    """`does` is called with the number of the step, from 0; the first `WARMUP` are untimed."""

    def __init__(self, does: Callable[[int], Any]) -> None:
        self.does = does
        self.step = 0

    def restart(self) -> None:
        self.step = 0

    def before(self) -> None: ...

    def call(self) -> None:
        self.does(self.step)
        self.step += 1

    def after(self) -> None: ...


def found(does: Callable[[int], Any], device: CudaDevice | None = None) -> Disturbances:
    disturbances = Disturbances()
    time_block(Steps(does), warmup=WARMUP, iters=ITERS, device=device, disturbances=disturbances)
    return disturbances


def in_step(number: int, does: Callable[[], Any]) -> Callable[[int], Any]:
    return lambda step: does() if step == number else None


def test_nothing_is_found_where_nothing_is() -> None:
    undisturbed = found(lambda step: [step] * 1000)
    assert undisturbed == Disturbances()
    assert undisturbed.texts() == ()


def test_a_collection_in_a_timed_step_is_found() -> None:
    assert found(lambda _: gc.collect()) == Disturbances(collections=ITERS)
    assert found(in_step(WARMUP, gc.collect)).texts() == ("the garbage collector ran",)


def test_a_collection_in_the_warmup_is_none() -> None:
    assert found(in_step(WARMUP - 1, gc.collect)) == Disturbances()


def test_a_collector_that_a_step_turns_on_is_found_once_it_runs() -> None:
    def turn_on_and_make_garbage() -> None:
        gc.enable()
        _ = [[] for _ in range(10 * gc.get_threshold()[0])]

    assert found(in_step(WARMUP, turn_on_and_make_garbage)).collections > 0


def test_both_passes_count() -> None:
    class Device:
        """Counts what the step below takes from the driver."""

        allocated = 0

        def synchronize(self) -> None: ...

        def hold(self, nanoseconds: int) -> None: ...

        def event(self) -> Any:
            return SimpleNamespace(record=lambda: None, elapsed_time=lambda later: 0.001)

        def allocations(self) -> int:
            return self.allocated

    device = Device()

    def allocate() -> None:
        device.allocated += 1

    disturbances = Disturbances()
    steps = Steps(in_step(WARMUP, allocate))
    time_block(steps, warmup=WARMUP, iters=ITERS, device=device, disturbances=disturbances)
    assert disturbances == Disturbances(allocations=2)
    assert disturbances.texts() == ("device memory was taken from or given back to the driver",)


@pytest.fixture
def compile_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """Compiles one kernel for a device that need not be there; the second time it is loaded."""
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from tests.measure.one_kernel import kernel

    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    source = ASTSource(fn=kernel, signature={"out": "*i32"}, constexprs={}, attrs={})
    return lambda: triton.compile(source, target=GPUTarget("cuda", 80, 32))


def test_a_compilation_by_triton_is_found(
    compile_kernel: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    import triton

    heard: list[bool] = []

    def listener(*, cache_hit: bool, **_: Any) -> None:
        heard.append(cache_hit)

    monkeypatch.setattr(triton.knobs.compilation, "listener", listener)
    assert found(in_step(WARMUP, compile_kernel)) == Disturbances(compilations=1)
    # A kernel that comes from the cache on the disk has no business in a timed step either.
    assert found(in_step(WARMUP, compile_kernel)).texts() == ("kernels were compiled or loaded",)
    assert found(in_step(0, compile_kernel)) == Disturbances()
    # Whoever listened before still does.
    assert heard == [False, True, True]
    assert triton.knobs.compilation.listener is listener


def test_older_versions_of_triton_are_asked_by_their_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    class JITFunction:
        """As in Triton 3.1, whose `_call_hook` this is in short."""

        cache_hook: Any = None

        def compiled_instead(self) -> bool:
            hook = JITFunction.cache_hook
            return hook is not None and bool(hook(key="", repr="", fn=None, already_compiled=False))

    monkeypatch.delitem(sys.modules, "triton.knobs", raising=False)
    monkeypatch.setitem(
        sys.modules,
        "triton.runtime.jit",
        SimpleNamespace(JITFunction=JITFunction),  # type: ignore[arg-type]
    )
    assert found(in_step(WARMUP, JITFunction().compiled_instead)) == Disturbances(compilations=1)
    assert JITFunction.cache_hook is None
    JITFunction.cache_hook = lambda **_: True
    answers: list[bool] = []
    found(in_step(WARMUP, lambda: answers.append(JITFunction().compiled_instead())))
    assert answers == [True]


def test_a_compilation_by_torch_is_found() -> None:
    torch = pytest.importorskip("torch")
    double = torch.compile(lambda x: x * 2, backend="eager")
    one, two = torch.ones(1), torch.ones(2, dtype=torch.int64)
    double(one)

    assert found(lambda _: double(one)) == Disturbances()
    again = found(lambda step: double(two if step == WARMUP else one))
    assert again.compilations == 1  # torch itself collects garbage then, too


@pytest.mark.gpu
def test_the_first_launch_of_a_kernel_is_found() -> None:
    import torch

    from tests.measure.one_kernel import kernel

    out = torch.zeros(1, dtype=torch.int16, device="cuda")
    device = CudaDevice()
    assert found(in_step(WARMUP, lambda: kernel[(1,)](out)), device).compilations > 0
    assert int(out) == 1
    assert found(lambda _: kernel[(1,)](out), device) == Disturbances()


@pytest.mark.gpu
class TestAllocator:
    """torch's caching allocator asks the driver for memory that it does not have yet."""

    def test_memory_that_is_kept_is_no_disturbance(self) -> None:
        import torch

        assert found(lambda _: torch.empty(1 << 20, device="cuda"), CudaDevice()) == Disturbances()

    def test_new_memory_is_found(self) -> None:
        import torch

        kept: list[Any] = []

        def allocate() -> None:
            kept.append(torch.empty(1 << 28, device="cuda"))

        torch.cuda.empty_cache()
        disturbed = found(in_step(WARMUP, allocate), CudaDevice())
        assert disturbed.allocations > 0
        assert disturbed.compilations == disturbed.collections == 0

    def test_memory_that_is_given_back_is_found(self) -> None:
        import torch

        torch.empty(1 << 28, device="cuda")
        assert found(in_step(WARMUP, torch.cuda.empty_cache), CudaDevice()).allocations > 0

    def test_pinned_memory_is_found(self) -> None:
        import torch

        if not hasattr(torch.cuda, "host_memory_stats"):
            pytest.skip("this torch does not count pinned memory")
        kept: list[Any] = []

        def allocate() -> None:
            kept.append(torch.empty(1 << 26, dtype=torch.uint8, pin_memory=True))

        assert found(in_step(WARMUP, allocate), CudaDevice()).allocations > 0
