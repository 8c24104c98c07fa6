"""How the step's kernel can be launched: each design in the same decode steps, and its floors.

    python benchmarks/designs.py --output designs.csv

Needs a GPU and the vLLM that `scripts/run_bench.sh` sets up. Every design prepares the steps of one
real runner behind the same gates and mirrors, after it was compared with vLLM's own path, whole
state by whole state. Rounds take all of them in drawn order; the table has the medians over the
rounds of each block's median. A floor is timed in the same steps, after their preparation.

`docs/designs.md` says what each design needs to stay exact, and which one is shipped.
"""

from __future__ import annotations

import ctypes
import os
import random
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Annotated, Any

os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"

import pandas as pd
import torch
import triton
import triton.language as tl
import typer

from bench_prep.decode.equality import prove_equal
from bench_prep.decode.runner import make_runners
from bench_prep.decode.steps import Decoder, Workload, use_once
from bench_prep.fastpath.device_writer import DeviceWriter
from bench_prep.fastpath.kernel import (
    STEP_SIGNATURE,
    group_table,
    step_constants,
    step_kernel,
    step_source,
    step_tensors,
)
from bench_prep.fastpath.preparer import attach
from bench_prep.fastpath.targets import Targets, find_targets
from bench_prep.measure.clocks import CudaDevice, time_block
from bench_prep.settings import RunSettings

SETTINGS = RunSettings(mrope=True)
_current_stream = torch._C._cuda_getCurrentRawStream


@triton.jit
def pinned_kernel(step, a, b, c, d, e, f, g, h, MROPE_STRIDE: tl.constexpr,
                  PROMPT_EMBEDS: tl.constexpr, MAX_NUM_REQS: tl.constexpr,
                  CHUNK: tl.constexpr):  # fmt: skip
    """The step's kernel, its three numbers in pinned host memory."""
    sampled = tl.load(step).to(tl.uint64).to(tl.pointer_type(tl.int32), bitcast=True)
    step_kernel(sampled, tl.load(step + 1), tl.load(step + 2), a, b, c, d, e, f, g, h,
                MROPE_STRIDE, PROMPT_EMBEDS, MAX_NUM_REQS, CHUNK)  # fmt: skip


@triton.jit
def counting_kernel(step, state, a, b, c, d, e, f, g, h, MROPE_STRIDE: tl.constexpr,
                    PROMPT_EMBEDS: tl.constexpr, MAX_NUM_REQS: tl.constexpr,
                    CHUNK: tl.constexpr):  # fmt: skip
    """The step's kernel, its positions counted on the device, by each program for itself."""
    own = state + 2 * tl.program_id(0)
    position, mrope_position = tl.load(own) + 1, tl.load(own + 1) + 1
    sampled = tl.load(step).to(tl.uint64).to(tl.pointer_type(tl.int32), bitcast=True)
    tl.store(own, position)
    tl.store(own + 1, mrope_position)
    step_kernel(sampled, position, mrope_position, a, b, c, d, e, f, g, h,
                MROPE_STRIDE, PROMPT_EMBEDS, MAX_NUM_REQS, CHUNK)  # fmt: skip


class Design:
    """Like `DeviceWriter`, whose fixed part it takes; `launch` alone repeats the last step's."""

    def __init__(self, targets: Targets) -> None:
        self.shipped = DeviceWriter(targets)
        self.targets = targets
        self.device = targets.positions.get_device()
        self.programs = len(targets.groups)
        self.tensors = step_tensors(targets, group_table(targets))
        self.constants = step_constants(targets)
        self.arguments: tuple[Any, ...] = ()
        self.prepare()

    def prepare(self) -> None:
        """What is done once."""

    def write_fixed(self) -> None:
        self.shipped.write_fixed()

    def write(self, position: int, mrope_position: int, sampled: Any) -> None:
        self.arguments = (sampled, position, mrope_position)
        self.launch()

    def launch(self) -> None:
        raise NotImplementedError


class Shipped(Design):
    """`DeviceWriter` itself."""

    def write(self, position: int, mrope_position: int, sampled: Any) -> None:
        self.shipped.write(position, mrope_position, sampled)

    def launch(self) -> None:
        self.shipped._launch()


class JustInTime(Design):
    def launch(self) -> None:
        step_kernel[(self.programs,)](*self.arguments, *self.tensors, **self.constants)


class PreBound(Design):
    def prepare(self) -> None:
        self.run = triton.compile(step_source(self.constants))[(self.programs, 1, 1)]
        self.rest = (*self.tensors, *self.constants.values())

    def launch(self) -> None:
        self.run(*self.arguments, *self.rest, stream=_current_stream(self.device))


class CudaBindings(Design):
    """The driver's call by NVIDIA's own library, which gives up the interpreter lock."""

    def prepare(self) -> None:
        from cuda.bindings import driver

        compiled = triton.compile(step_source(self.constants))
        compiled._init_handles()
        self.numbers = (ctypes.c_int64 * 16)(
            *(0, 0, 0), *(tensor.data_ptr() for tensor in self.tensors)
        )
        first = ctypes.addressof(self.numbers)
        self.pointers = (ctypes.c_void_p * 16)(*(first + 8 * i for i in range(16)))
        self.call, self.stream = driver.cuLaunchKernel, driver.CUstream
        function = driver.CUfunction(compiled.function)
        threads = 32 * compiled.metadata.num_warps
        self.shape = (function, self.programs, 1, 1, threads, 1, 1, compiled.metadata.shared)
        self.where = ctypes.addressof(self.pointers)

    def write(self, position: int, mrope_position: int, sampled: Any) -> None:
        numbers = self.numbers
        numbers[0], numbers[1], numbers[2] = sampled.data_ptr(), position, mrope_position
        self.launch()

    def launch(self) -> None:
        stream = self.stream(_current_stream(self.device))
        if int(self.call(*self.shape, stream, self.where, 0)[0]):
            raise RuntimeError("the driver refused the launch")


class Replayed(Design):
    """A captured launch whose numbers are read from pinned host memory."""

    def prepare(self) -> None:
        self.pinned = torch.zeros(3, dtype=torch.int64, pin_memory=True)
        self.numbers = memoryview(self.pinned.numpy())
        self.graph = captured(self.one)
        library = ctypes.PyDLL("libcuda.so.1")
        self.call = library.cuGraphLaunch
        self.call.argtypes = [ctypes.c_void_p] * 2
        self.executable = self.graph.raw_cuda_graph_exec()

    def one(self) -> None:
        self.numbers[0] = self.targets.input_ids.data_ptr()
        pinned_kernel[(self.programs,)](self.pinned, *self.tensors, **self.constants)

    def write(self, position: int, mrope_position: int, sampled: Any) -> None:
        numbers = self.numbers
        numbers[0], numbers[1], numbers[2] = sampled.data_ptr(), position, mrope_position
        self.launch()

    def launch(self) -> None:
        if self.call(self.executable, _current_stream(self.device)):
            raise RuntimeError("the driver refused the launch")


class ReplayedByTorch(Replayed):
    def launch(self) -> None:
        self.graph.replay()


class Counting(Replayed):
    """The positions stay on the device; the token's address is still the host's to say."""

    def prepare(self) -> None:
        self.state = torch.zeros(self.programs, 2, dtype=torch.int64, device="cuda")
        self.next = (-1, -1)
        super().prepare()

    def one(self) -> None:
        self.numbers[0] = self.targets.input_ids.data_ptr()
        counting_kernel[(self.programs,)](self.pinned, self.state, *self.tensors, **self.constants)

    def write(self, position: int, mrope_position: int, sampled: Any) -> None:
        if (position, mrope_position) != self.next:
            self.state[:, 0], self.state[:, 1] = position - 1, mrope_position - 1
        self.next = position + 1, mrope_position + 1
        self.numbers[0] = sampled.data_ptr()
        self.launch()


DESIGNS: dict[str, type[Design]] = {
    "ordinary JIT launch": JustInTime,
    "pre-bound compiled kernel": PreBound,
    "driver's launch by cuda.bindings": CudaBindings,
    "driver's launch, lock kept (shipped)": Shipped,
    "graph replay by torch, numbers in pinned memory": ReplayedByTorch,
    "graph replay by the driver, lock kept": Replayed,
    "the same, position on the device": Counting,
}


def captured(launch: Callable[[], None], times: int = 1) -> Any:
    for _ in range(2):  # compiled before it is captured
        launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            launch()
    return graph


class Nothing(Design):
    """No launch: what gates and mirrors take."""

    def write(self, position: int, mrope_position: int, sampled: Any) -> None: ...

    def launch(self) -> None: ...


class After:
    """Steps that are prepared untimed; `call` is what is timed behind it."""

    def __init__(self, decoder: Decoder, timed: Callable[[], None]) -> None:
        self.decoder, self.timed = decoder, timed
        self.result: Any = None
        self.restart = decoder.restart
        self.after = decoder.after

    def before(self) -> None:
        self.decoder.prepare_step()

    def call(self) -> Any:
        self.timed()


def model_graphs(replayed: Replayed) -> tuple[Any, Any]:
    """A graph like a small model's decode step, without and with the step's kernel before it."""
    states = torch.zeros(1, 1024, device="cuda")
    weights = torch.zeros(1024, 1024, device="cuda")

    def layers() -> None:
        for _ in range(100):
            torch.mm(states, weights).add_(1)

    def folded() -> None:
        replayed.one()
        layers()

    return captured(layers), captured(folded)


def main(
    output: Annotated[Path, typer.Option(help="CSV to write")] = Path("designs.csv"),
    rounds: Annotated[int, typer.Option(min=2)] = 12,
    iters: Annotated[int, typer.Option(min=10)] = 150,
    seed: int = 2026,
) -> None:
    baseline, runner = make_runners(SETTINGS, 2)
    work = Workload.make(SETTINGS, runner.inputs_embeds_size, runner.dtype)
    for one in (baseline, runner):
        use_once(one, work)
    own = Decoder(baseline, work, baseline._prepare_inputs)
    path = attach(runner)
    decoder = Decoder(runner, work, path)
    targets = find_targets(runner)
    designs = {name: kind(targets) for name, kind in DESIGNS.items()}
    stretch = Workload.make(
        SETTINGS, runner.inputs_embeds_size, runner.dtype, SETTINGS.position + 40
    )
    timed: dict[str, tuple[str, Any, Any]] = {"vLLM's own preparation": ("design", None, own)}
    with torch.inference_mode():
        for name, design in designs.items():
            path._writer = design
            path.mark_dirty()
            proof = prove_equal(own, decoder, [stretch])
            print(f"{name}: {proof.steps} states identical", flush=True)
            timed[name] = ("design", design, decoder)
        nothing = Nothing(targets)
        timed["gates and mirrors, no launch"] = ("part", nothing, decoder)
        shipped = designs["driver's launch, lock kept (shipped)"]
        replayed = designs["graph replay by the driver, lock kept"]
        plain, folded = model_graphs(replayed)  # type: ignore[arg-type]
        for name, call in {
            "an empty call": nothing.launch,
            "launch of the shipped design": shipped.launch,
            "graph replay by the driver": replayed.launch,
            "a model's graph of 200 kernels": plain.replay,
            "the same with the step's kernel in it": folded.replay,
        }.items():
            timed[name] = ("floor", shipped, After(decoder, call))
        blocks = take(path, (own, decoder), work, timed, rounds, iters, seed)
    frame = pd.DataFrame(rows(timed, blocks))
    frame.to_csv(output, index=False)
    print(frame.round(2).to_string(index=False))


def take(
    path: Any, decoders: Any, work: Workload, timed: Any, rounds: int, iters: int, seed: int
) -> dict[str, list[dict[str, float]]]:
    device, draw = CudaDevice(), random.Random(seed)
    for each in decoders:
        each.workload = work
        each.reserve_tokens(iters + 60)
    blocks: dict[str, list[dict[str, float]]] = {name: [] for name in timed}
    for number in range(rounds + 1):
        for name in draw.sample(list(timed), len(timed)):
            _, design, steps = timed[name]
            if design is not None:
                path._writer = design
                path.mark_dirty()
            samples = time_block(steps, warmup=50, iters=iters, device=device)
            if number:  # the first round warms everything up
                blocks[name].append(
                    {clock: median(samples[clock]) / 1e3 for clock in ("host", "ready", "device")}  # type: ignore[literal-required]
                )
        print(f"round {number} of {rounds}", flush=True)
    return blocks


def rows(timed: Any, blocks: dict[str, list[dict[str, float]]]) -> list[dict[str, Any]]:
    """One row per design or floor; times in microseconds, with the middle 80 % of the rounds."""
    found = []
    for name, taken in blocks.items():
        row: dict[str, Any] = {"what": name, "kind": timed[name][0], "rounds": len(taken)}
        for clock in ("host", "ready", "device"):
            values = [block[clock] for block in taken]
            tenths = quantiles(values, n=10, method="inclusive")
            row |= {f"{clock}_us": median(values), f"{clock}_low": tenths[0]}
            row |= {f"{clock}_high": tenths[-1]}
        found.append(row)
    versions = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
    }
    return [row | versions for row in found]


assert list(STEP_SIGNATURE)[:3] == ["sampled", "position", "mrope_position"]

if __name__ == "__main__":
    typer.run(main)
