"""On a device: the kernels write what the host writer writes, on the current stream."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.gpu


def on(device: str, value: Any) -> Any:
    from bench_prep.fastpath.targets import Group

    if isinstance(value, torch.Tensor):
        return value.to(device, copy=True)
    if isinstance(value, Group):
        return Group(
            on(device, value.block_table), on(device, value.slot_mapping), value.block_size
        )
    return tuple(on(device, item) for item in value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("mrope", [False, True])
@pytest.mark.parametrize("embeds", [False, True])
def test_replays_write_each_step_s_numbers(
    mrope: bool, embeds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    from bench_prep.fastpath.device_writer import DeviceWriter
    from bench_prep.fastpath.host_writer import HostWriter
    from bench_prep.fastpath.mirrors import Mirrors
    from tests.fastpath.target_sets import runner_of, targets

    host = targets(1, 128, 4096, [16, 32, None, 1024], mrope, embeds)
    device = replace(host, **{f.name: on("cuda", getattr(host, f.name)) for f in fields(host)})
    writer, host_writer = DeviceWriter(device), HostWriter(host)

    def compare(when: str) -> None:
        torch.cuda.synchronize()
        for f in fields(host):
            one = getattr(host, f.name)
            if isinstance(one, torch.Tensor):
                assert torch.equal(one, getattr(device, f.name).cpu()), f"{f.name} {when}"
        for group, other in zip(host.groups, device.groups, strict=True):
            if group.slot_mapping is not None:
                assert torch.equal(group.slot_mapping, other.slot_mapping.cpu()), when

    compare("before anything was launched")
    pool = torch.randint(0, 2**31 - 1, (50, 3), dtype=torch.int32, device="cuda")
    for step, position in enumerate([0, 1, 15, 16, 17, 31, 32, 1023, 1024, 4095]):
        # Tokens at addresses that are aligned and not aligned to 16 bytes.
        sampled = pool[step : step + 1, step % 3 : step % 3 + 1]
        token = int(sampled)
        mirrors = Mirrors(runner_of(host, token, position))
        if step % 3 == 0:
            writer.write_fixed()
            mirrors.write_fixed(0)
            host_writer.write_fixed()
        writer.write(position, position - 7, sampled)
        mirrors.write(position, position - 7)
        host_writer.write(position, position - 7, sampled)
        compare(f"at position {position}")


def test_it_replays_on_the_current_stream() -> None:
    from bench_prep.fastpath.device_writer import DeviceWriter
    from tests.fastpath.target_sets import targets

    host = targets(2, 8, 64, [16], False, False)
    device = replace(host, **{f.name: on("cuda", getattr(host, f.name)) for f in fields(host)})
    writer = DeviceWriter(device)
    writer.write_fixed()
    sampled = torch.tensor([[5]], dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)
        writer.write(33, 33, sampled)
    assert not side.query(), "the launch must wait for its stream"
    side.synchronize()
    assert int(device.positions[0]) == 33
