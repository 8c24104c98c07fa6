"""From states to doubts: pure rules, on states that are made for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench_prep.measure.device_state import DeviceState
from bench_prep.measure.disturbances import Disturbances
from bench_prep.measure.doubts import doubts, unknown
from bench_prep.measure.state import MachineState, Span, read_state, together
from bench_prep.measure.watch import Watch

DEVICE = DeviceState(
    clock_mhz=1980,
    memory_clock_mhz=3201,
    temperature_c=40,
    power_w=120.0,
    power_limit_w=700.0,
    reasons=(),
    slowed_ns={"power cap": 10, "thermal slowdown by software": 20},
    other_processes=0,
)
#: Ten seconds of one busy thread on four processors; nothing wrong.
BEFORE = MachineState(
    at_s=100.0,
    read_s=0.001,
    governor="performance",
    load=0.3,
    processors=4,
    affinity=(0, 1),
    busy_s=1000.0,
    idle_s=3000.0,
    steal_s=5.0,
    own_s=50.0,
    waited_s=1.0,
    quota_s=0.0,
    threads=1,
    device=DEVICE,
)
AFTER = replace(BEFORE, at_s=110.0, busy_s=1010.0, idle_s=3030.0, own_s=60.0)


def span(before: dict[str, Any] | None = None, after: dict[str, Any] | None = None) -> Span:
    return Span(replace(BEFORE, **(before or {})), replace(AFTER, **(after or {})))


def both(**changes: Any) -> Span:
    return span(changes, changes)


def device(**changes: Any) -> dict[str, Any]:
    return {"device": replace(DEVICE, **changes)}


def texts(*spans: Span) -> list[str]:
    return [doubt.text for doubt in doubts(spans)]


def test_a_quiet_machine_leaves_no_doubt() -> None:
    assert doubts([span(), span()]) == []
    assert unknown([span(), span()]) == []
    assert doubts([]) == []


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (both(slowed_by=("tracemalloc",)), "the timing process was slowed by tracemalloc"),
        (both(threads=3), "torch had 3 threads on 2 processors"),
        (both(governor="powersave"), "the processors' frequency governor was powersave"),
        (span(after={"busy_s": 1015.0}), "other work kept 0.5 of 4 processors busy"),
        (
            span(after={"steal_s": 5.2}),
            "the hypervisor gave 2.0 % of the processor time to others",
        ),
        (
            span(after={"waited_s": 1.2}),
            "the timing thread waited 2.0 % of the time for a processor",
        ),
        (
            span(after={"affinity": (0,)}),
            "the processors that the timing process may use were changed while it timed",
        ),
        (span(after={"quota_s": 0.25}), "the container's processor quota stopped it for 500 ms"),
        (
            span(after=device(reasons=("power brake",))),
            "the device was throttled: power brake",
        ),
        (
            span(after=device(slowed_ns={"thermal slowdown by software": 21})),
            "the device was throttled: thermal slowdown by software",
        ),
        (span(after=device(reasons=("power cap",))), "the device was at its power limit"),
        (span(after=device(slowed_ns={"power cap": 11})), "the device was at its power limit"),
        (both(**device(other_processes=1)), "1 other process was on the device"),
        (both(**device(other_processes=2)), "2 other processes were on the device"),
        (
            span(after=device(clock_mhz=1200)),
            "the device's clock changed between 1200 and 1980 MHz",
        ),
    ],
)
def test_each_doubt_is_said_once_with_a_remedy(one: Span, text: str) -> None:
    (doubt,) = doubts([one, one])
    assert doubt.text == text
    assert doubt.remedy
    assert "\n" not in doubt.text + doubt.remedy


@pytest.mark.parametrize(
    "one",
    [
        span(after={"busy_s": 1013.9}),  # a tenth of the processors
        span(after={"steal_s": 5.1}),  # 1 %
        span(after={"waited_s": 1.099}),
        both(threads=2),
        span(after=device(clock_mhz=1900)),
        # An idle device has a low clock, and application clocks are somebody's choice.
        span(after=device(clock_mhz=345, reasons=("idle",))),
        both(**device(reasons=("application clocks", "idle", "sync boost"))),
    ],
)
def test_below_the_limits_there_is_no_doubt(one: Span) -> None:
    assert doubts([one]) == []


def test_what_happened_counts_over_the_whole_run() -> None:
    quiet, busy = span(), span(after={"busy_s": 1016.0})
    assert texts(busy) == ["other work kept 0.6 of 4 processors busy"]
    assert texts(busy, quiet) == []
    assert texts(busy, busy, busy, quiet) == ["other work kept 0.5 of 4 processors busy"]


def test_unknown_is_neither_doubt_nor_trust() -> None:
    nothing = Span(MachineState(at_s=1.0), MachineState(at_s=2.0))
    assert doubts([nothing]) == []
    assert unknown([nothing]) == [
        "frequency governor",
        "load",
        "work of others",
        "steal time",
        "waits for a processor",
        "processor quota",
        "torch's threads",
    ]
    assert unknown([both(device=DeviceState())]) == [
        "device clock",
        "device temperature",
        "device power",
        "device throttling",
        "other processes on the device",
    ]


def test_a_field_that_the_device_refuses_is_unknown_alone() -> None:
    assert unknown([both(**device(power_w=None))]) == ["device power"]
    # Either of the two sources tells of throttling.
    assert unknown([both(**device(reasons=None))]) == []
    assert unknown([both(**device(slowed_ns=None))]) == []
    assert unknown([both(**device(reasons=None, slowed_ns=None))]) == ["device throttling"]
    # A counter that one end lacks has not grown.
    assert doubts([span(device(slowed_ns={}), device(slowed_ns={"power brake": 9}))]) == []


class Readings:
    """States one after the other."""

    def __init__(self, *states: MachineState) -> None:
        self.states = iter(states)

    def __call__(self) -> MachineState:
        return next(self.states)


class TestWatch:
    def test_a_round_with_a_throttled_device_is_left_out(self) -> None:
        hot = replace(AFTER, **device(reasons=("thermal slowdown by hardware",)))
        watch = Watch(Readings(BEFORE, AFTER, hot, AFTER, AFTER))
        assert watch.left_out() == ""
        assert watch.span == Span(BEFORE, AFTER)
        reason = "the device was throttled (thermal slowdown by hardware)"
        assert watch.left_out() == reason
        # Nobody knows when in this round it ended.
        assert watch.left_out() == reason
        assert watch.left_out() == ""

    def test_a_round_in_which_the_device_was_throttled_for_a_while_is_left_out(self) -> None:
        later = replace(AFTER, **device(slowed_ns=DEVICE.slowed_ns | {"power brake": 5}))  # type: ignore[operator]
        again = replace(AFTER, **device(slowed_ns=DEVICE.slowed_ns | {"power brake": 6}))  # type: ignore[operator]
        watch = Watch(Readings(BEFORE, later, again))
        assert watch.left_out() == ""  # counted from now on
        assert watch.left_out() == "the device was throttled (power brake)"

    @pytest.mark.parametrize("reasons", [("idle",), ("application clocks",), ("power cap",)])
    def test_other_reasons_leave_no_round_out(self, reasons: tuple[str, ...]) -> None:
        watch = Watch(Readings(*[replace(BEFORE, **device(reasons=reasons))] * 2))
        assert watch.left_out() == ""

    def test_a_disturbed_round_is_left_out_and_the_next_one_is_not(self) -> None:
        watch = Watch(read_state)
        watch.disturbances("candidate").compilations += 1
        watch.disturbances("baseline_after").collections += 2
        assert watch.left_out() == (
            "kernels were compiled or loaded in candidate; "
            "the garbage collector ran in baseline_after"
        )
        assert watch.disturbances("candidate") == Disturbances()
        assert watch.left_out() == ""

    def test_without_a_reading_disturbances_alone_count(self) -> None:
        watch = Watch()
        assert watch.left_out() == ""
        assert watch.span is None


def test_two_processes_that_time_in_turn_are_seen_as_one() -> None:
    """Else the work of one would be that of others to the other one."""
    one, other = span(), span({"own_s": 7.0, "waited_s": 0.5}, {"own_s": 12.0, "waited_s": 0.6})
    both_busy = span(after={"busy_s": 1015.0, "waited_s": 1.2})
    assert texts(both_busy) == [
        "other work kept 0.5 of 4 processors busy",
        "the timing thread waited 2.0 % of the time for a processor",
    ]
    seen = Span(together(both_busy.before, other.before), together(both_busy.after, other.after))
    assert texts(seen) == ["the timing thread waited 3.0 % of the time for a processor"]
    assert together(one.before, replace(other.before, waited_s=None)).waited_s is None
    slow = replace(other.before, slowed_by=("tracemalloc",), threads=None)
    assert together(one.before, slow).slowed_by == ("tracemalloc",)
    assert together(one.before, slow).threads == 1
    assert together(slow, slow).threads is None
