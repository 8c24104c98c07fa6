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
import importlib.metadata
import os
import random
import sys
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

from bench_prep.decode.bring_up import fastpath_sha256
from bench_prep.decode.equality import prove_equal
from bench_prep.decode.runner import make_runners
from bench_prep.decode.steps import Decoder, Workload, use_once
from bench_prep.fastpath.device_writer import DeviceWriter
from bench_prep.fastpath.kernel import (
    STEP_SIGNATURE,
    group_table,
    source,
    step_constants,
    step_kernel,
    step_tensors,
    write_step,
)
from bench_prep.fastpath.preparer import attach
from bench_prep.fastpath.targets import Targets, find_targets
from bench_prep.measure.clocks import CudaDevice, time_block
from bench_prep.settings import RunSettings

SETTINGS = RunSettings(mrope=True)
_current_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", int)


@triton.jit
def passed_kernel(
    sampled,
    position,
    mrope_position,
    groups,
    input_ids,
    positions,
    seq_lens,
    num_computed_tokens,
    num_accepted_tokens,
    is_token_ids,
    mrope_positions,
    MROPE_STRIDE: tl.constexpr,
    PROMPT_EMBEDS: tl.constexpr,
):
    """The step's kernel, its three numbers passed as arguments."""
    write_step(
        sampled, position, mrope_position, groups, input_ids, positions, seq_lens,
        num_computed_tokens, num_accepted_tokens, is_token_ids, mrope_positions,
        MROPE_STRIDE, PROMPT_EMBEDS,
    )  # fmt: skip


@triton.jit
def counting_kernel(step, state, a, b, c, d, e, f, g, h,
                    MROPE_STRIDE: tl.constexpr, PROMPT_EMBEDS: tl.constexpr):  # fmt: skip
    """The step's kernel, its positions counted on the device, by each program for itself."""
    own = state + 2 * tl.program_id(0)
    position, mrope_position = tl.load(own) + 1, tl.load(own + 1) + 1
    sampled = tl.load(step).to(tl.uint64).to(tl.pointer_type(tl.int32), bitcast=True)
    tl.store(own, position)
    tl.store(own + 1, mrope_position)
    write_step(sampled, position, mrope_position, a, b, c, d, e, f, g, h,
               MROPE_STRIDE, PROMPT_EMBEDS)  # fmt: skip


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

    def prepare(self) -> None:
        self.write = self.shipped.write
        self.call = driver_call("cuGraphLaunch", 2)

    def launch(self) -> None:
        if self.call(self.shipped._executable, _current_stream(self.device)):
            raise RuntimeError("the driver refused the launch")


class JustInTime(Design):
    def launch(self) -> None:
        passed_kernel[(self.programs,)](*self.arguments, *self.tensors, **self.constants)


class Compiled(Design):
    """The step's kernel compiled ahead, its numbers passed as arguments."""

    def prepare(self) -> None:
        numbers = {"sampled": "*i32", "position": "i64", "mrope_position": "i64"}
        signature = numbers | {k: v for k, v in STEP_SIGNATURE.items() if k != "step"}
        self.compiled = triton.compile(source(passed_kernel, signature, self.constants))
        self.run = self.compiled[(self.programs, 1, 1)]
        self.rest = (*self.tensors, *self.constants.values())

    def launch(self) -> None:
        self.run(*self.arguments, *self.rest, stream=_current_stream(self.device))


class Driver(Compiled):
    """The driver's own call, whose arguments lie in memory, without giving up the lock."""

    def prepare(self) -> None:
        super().prepare()
        passed = [0, 0, 0, *(tensor.data_ptr() for tensor in self.tensors), *[0] * 4]
        self.numbers = (ctypes.c_int64 * len(passed))(*passed)  # four for Triton's scratch memory
        first = ctypes.addressof(self.numbers)
        addresses = (first + 8 * index for index in range(len(passed)))
        self.pointers = (ctypes.c_void_p * len(passed))(*addresses)
        self.threads = 32 * self.compiled.metadata.num_warps
        self.configuration = LaunchConfiguration(
            (self.programs, 1, 1), (self.threads, 1, 1), self.compiled.metadata.shared
        )
        self.call = driver_call("cuLaunchKernelEx", 4)
        self.passed = (
            ctypes.addressof(self.configuration),
            self.compiled.function,
            ctypes.addressof(self.pointers),
            None,
        )

    def write(self, position: int, mrope_position: int, sampled: Any) -> None:
        numbers = self.numbers
        numbers[0], numbers[1], numbers[2] = sampled.data_ptr(), position, mrope_position
        self.launch()

    def launch(self) -> None:
        self.configuration.stream = _current_stream(self.device)
        if self.call(*self.passed):
            raise RuntimeError("the driver refused the launch")


class CudaBindings(Driver):
    """The same by NVIDIA's own library, which gives up the lock."""

    def prepare(self) -> None:
        from cuda.bindings import driver

        super().prepare()
        self.call, self.stream = driver.cuLaunchKernel, driver.CUstream
        function, shared = driver.CUfunction(self.compiled.function), self.configuration.shared
        self.passed = (function, self.programs, 1, 1, self.threads, 1, 1, shared)

    def launch(self) -> None:
        stream = self.stream(_current_stream(self.device))
        if int(self.call(*self.passed, stream, ctypes.addressof(self.pointers), 0)[0]):
            raise RuntimeError("the driver refused the launch")


class LaunchConfiguration(ctypes.Structure):
    """The driver's `CUlaunchConfig`."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


def driver_call(name: str, arguments: int) -> Any:
    call = getattr(ctypes.PyDLL("libcuda.so.1"), name)
    call.argtypes = [ctypes.c_void_p] * arguments
    return call


class Replayed(Design):
    """A captured launch whose numbers are read from pinned host memory."""

    def prepare(self) -> None:
        self.pinned = torch.zeros(3, dtype=torch.int64, pin_memory=True)
        self.numbers = memoryview(self.pinned.numpy())
        self.graph = captured(self.one)
        self.call = driver_call("cuGraphLaunch", 2)
        self.executable = self.graph.raw_cuda_graph_exec()

    def one(self) -> None:
        self.numbers[0] = self.targets.input_ids.data_ptr()
        step_kernel[(self.programs,)](self.pinned, *self.tensors, **self.constants)

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


SHIPPED = "graph replay by the driver, lock kept (shipped)"
DESIGNS: dict[str, type[Design]] = {
    "ordinary JIT launch": JustInTime,
    "pre-bound compiled kernel": Compiled,
    "driver's launch by cuda.bindings": CudaBindings,
    "driver's launch, lock kept": Driver,
    "graph replay by torch": ReplayedByTorch,
    SHIPPED: Shipped,
    "graph replay, position on the device": Counting,
}


def captured(launch: Callable[[], None]) -> Any:
    for _ in range(2):  # compiled before it is captured
        launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
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


def model_graphs(replayed: Any) -> tuple[Any, Any]:
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
    rounds: Annotated[int, typer.Option(min=2, help="Rounds that count.")] = 12,
    iters: Annotated[int, typer.Option(min=10, help="Timed steps of each block.")] = 150,
    seed: Annotated[int, typer.Option(help="Draws the order of the designs.")] = 2026,
) -> None:
    """Time the designs on one real runner; a row for each in a CSV."""
    if not torch.cuda.is_available():
        typer.echo("error: no CUDA device\ntry: run it on a machine with one", err=True)
        raise typer.Exit(6)
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
            path.use(design)
            proof = prove_equal(own, decoder, [stretch])
            print(f"{name}: {proof.steps} states identical", flush=True)
            timed[name] = ("design", design, decoder)
        nothing = Nothing(targets)
        timed["gates and mirrors, no launch"] = ("part", nothing, decoder)
        shipped, replayed = designs[SHIPPED], designs["graph replay by torch"]
        plain, folded = model_graphs(replayed)
        for name, call in {
            "an empty call": nothing.launch,
            "launch of the shipped design": shipped.launch,
            "launch by the driver": designs["driver's launch, lock kept"].launch,
            "a model's graph of 200 kernels": plain.replay,
            "the same with the step's kernel in it": folded.replay,
        }.items():
            timed[name] = ("floor", shipped, After(decoder, call))
        blocks = take(path, (own, decoder), work, timed, rounds, iters, seed)
    frame = pd.DataFrame(rows(timed, blocks, iters))
    frame.to_csv(output, index=False)
    print(frame.round(2).to_string(index=False), flush=True)
    os._exit(0)  # NCCL's process group keeps the process for minutes


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
                path.use(design)
            samples = time_block(steps, warmup=50, iters=iters, device=device)
            if number:  # the first round warms everything up
                blocks[name].append(
                    {clock: median(samples[clock]) / 1e3 for clock in ("host", "ready", "device")}  # type: ignore[literal-required]
                )
        print(f"round {number} of {rounds}", flush=True)
    return blocks


def rows(timed: Any, blocks: dict[str, list[dict[str, float]]], iters: int) -> list[dict[str, Any]]:
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
    about = {
        "device": torch.cuda.get_device_name(),
        "vllm": importlib.metadata.version("vllm"),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "fastpath_sha256": fastpath_sha256(),
        "settings": SETTINGS.model_dump_json(),
        "iters": iters,
        "command": " ".join(["python", "benchmarks/designs.py", *sys.argv[1:]]),
    }
    return [row | about for row in found]


if __name__ == "__main__":
    typer.run(main)
