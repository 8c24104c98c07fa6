"""The whole-state comparison sees every buffer, and says where."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from bench_prep.snapshot import (
    addresses,
    first_difference,
    kinds,
    leaves,
    memory,
    moved,
    shared_memory,
)


@dataclass
class Inner:
    array: Any = field(default_factory=lambda: np.arange(6).reshape(2, 3))
    nothing: Any = None


@dataclass
class Outer:
    tensor: Any = field(default_factory=lambda: torch.zeros(2, 3))
    inner: Inner = field(default_factory=Inner)
    table: dict[str, Any] = field(default_factory=lambda: {"a": [1, 2]})
    drafts: list[list[int]] = field(default_factory=lambda: [[], []])


def test_equal_objects_have_no_difference() -> None:
    assert first_difference(Outer(), Outer()) is None


@pytest.mark.parametrize(
    ("change", "buffer", "index", "expected", "found"),
    [
        (lambda o: o.tensor.__setitem__((1, 2), 7), "tensor", (1, 2), 0.0, 7.0),
        (lambda o: o.tensor.__setitem__((0, 1), -0.0), "tensor", (0, 1), 0.0, -0.0),
        (lambda o: o.inner.array.__setitem__((1, 0), 9), "inner.array", (1, 0), 3, 9),
        (lambda o: o.table["a"].__setitem__(1, 5), "table['a'][1]", None, 2, 5),
        (lambda o: setattr(o.inner, "nothing", 0), "inner.nothing", None, None, 0),
        (lambda o: o.drafts[1].append(4), "drafts.only_empty_lists()", None, True, "nothing"),
    ],
)
def test_a_change_is_located(
    change: Any, buffer: str, index: Any, expected: Any, found: Any
) -> None:
    other = Outer()
    change(other)
    difference = first_difference(Outer(), other)
    assert difference is not None
    assert difference.buffer == buffer
    assert difference.index == index
    assert str(difference.expected) == str(expected)
    assert str(difference.found) == str(found)


def test_nan_is_equal_to_itself() -> None:
    assert first_difference(torch.tensor([float("nan")]), torch.tensor([float("nan")])) is None


def test_another_shape_dtype_or_key_is_a_difference() -> None:
    assert first_difference(torch.zeros(2), torch.zeros(3)) is not None
    assert first_difference(torch.zeros(2), torch.zeros(2, dtype=torch.int32)) is not None
    assert first_difference({"a": 1}, {"a": 1, "b": 2}) is not None
    assert first_difference({"a": 1, "b": 2}, {"a": 1}) is not None


def test_requests_that_came_and_went_leave_no_difference() -> None:
    assert first_difference([[]] * 3, [[]] * 4) is None


def test_values_made_during_the_walk_do_not_hide_each_other() -> None:
    histories = [list(range(n, n + 20)) for n in range(50)]
    assert sum(isinstance(value, np.ndarray) for _, value in leaves(histories)) == 50
    keyed = [{str(n): n} for n in range(50)]
    assert sum(path.endswith(".keys()[0]") for path, _ in leaves(keyed)) == 50


@dataclass
class Buffer:
    cpu: Any = field(default_factory=lambda: torch.zeros(4))
    history: list[int] = field(default_factory=lambda: list(range(20)))

    def __post_init__(self) -> None:
        self.np = self.cpu.numpy()
        self.row = self.np[2:]


def test_a_host_mirror_that_is_cut_off_from_its_buffer() -> None:
    buffer = Buffer()
    places = addresses(buffer)
    assert {*places} == {"cpu", "np", "row"}
    assert moved(places, buffer) == set()
    assert len({*memory(buffer).values()}) == 1
    buffer.np = buffer.np.copy()
    assert moved(places, buffer) == {"np"}
    shared = memory(buffer)
    assert shared["cpu"] == shared["row"] != shared["np"]


def test_buffers_that_two_states_share() -> None:
    one, other = Outer(), Outer()
    assert shared_memory(one, other) is None
    # Whichever lies first in memory.
    assert shared_memory(one, one) in [(path, path) for path in ("inner.array", "tensor")]
    other.inner.array = one.inner.array.reshape(-1)[5:]
    assert shared_memory(one, other) == ("inner.array", "inner.array")
    other.inner.array = one.inner.array.reshape(-1)[4:]
    one.inner.array = one.inner.array.reshape(-1)[:4]
    assert shared_memory(one, other) is None


def test_memory_is_shared_whichever_way_it_is_walked() -> None:
    numbers = np.arange(12)
    backwards, second = numbers[::-1], numbers[2:3]
    assert shared_memory([backwards], [second]) == ("[0]", "[0]")
    assert shared_memory([torch.from_numpy(numbers)[6:]], [numbers[:7]]) == ("[0]", "[0]")
    assert shared_memory([numbers[:6], numbers[9:]], [np.arange(3), numbers[6:9]]) is None
    assert shared_memory([numbers[:8], numbers[:2]], [numbers[7:]]) == ("[0]", "[0]")


def test_what_objects_are() -> None:
    class Subclass(Inner):
        def method(self) -> None: ...

    one, other = Outer(), Outer()
    assert kinds(one) == kinds(other)
    other.inner = Subclass()
    other.tensor = torch.nn.Parameter(other.tensor)
    other.inner.nothing = other.inner.method
    differ = {path for path, kind in kinds(other).items() if kinds(one).get(path) != kind}
    assert differ == {"inner", "tensor", "inner.nothing"}


def test_cycles_end() -> None:
    cycle: list[Any] = [1]
    cycle.append(cycle)
    assert ("[0]", 1) in list(leaves(cycle))


@pytest.mark.vllm
def test_every_buffer_of_a_runner_is_compared() -> None:
    """Flip one element of each buffer in turn: each time exactly that one is named."""
    from bench_prep.decode.runner import make_runners
    from bench_prep.settings import RunSettings

    settings = RunSettings(
        position=100, max_model_len=256, max_num_reqs=4, max_num_tokens=64, mrope=True,
        prompt_embeds=True,
    )  # fmt: skip
    one, other = make_runners(settings, 2)
    assert first_difference(one, other) is None
    buffers = [
        (path, value)
        for path, value in leaves(other)
        if isinstance(value, torch.Tensor | np.ndarray) and np.prod(value.shape) > 0
    ]
    names = {path for path, _ in buffers}
    assert {"positions", "seq_lens", "input_batch.token_ids_cpu_tensor"} <= names
    assert any("slot_mapping" in name for name in names)
    for path, value in buffers:
        tensor = value if isinstance(value, torch.Tensor) else torch.from_numpy(value)
        flat = tensor.view(torch.uint8) if tensor.is_contiguous() and tensor.dim() else tensor
        last = (-1,) * flat.dim()
        before = flat[last].clone()
        changed = before + 1
        flat[last] = changed if changed != before else torch.ones_like(before)
        difference = first_difference(one, other)
        flat[last] = before
        assert difference is not None, path
        assert difference.buffer == path
    assert first_difference(one, other) is None
