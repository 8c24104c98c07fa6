"""Recordings that several processes write and one reads."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from bench_prep.steps.parts import NUMBERS
from bench_prep.steps.recorder import Recorder, Switch, cost_ns, read_recording


def test_scopes_and_methods(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "runner")
    recorder.here()
    scope, twice = recorder.scope("preprocess"), recorder.recorded("sample", lambda x: 2 * x)
    for _ in range(2):
        with scope:
            assert twice(21) == 42
    recording = read_recording(tmp_path, "runner")
    assert recording is not None
    assert (recording.process, recording.thread) == (os.getpid(), threading.get_native_id())
    numbers = [NUMBERS["sample"], NUMBERS["preprocess"]] * 2
    assert recording.records[:, 0].tolist() == numbers
    inner, outer = recording.records[0], recording.records[1]
    assert outer[1] <= inner[1] <= inner[2] <= outer[2]


def test_an_error_is_recorded_and_passed_on(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "runner")
    with pytest.raises(ZeroDivisionError):
        recorder.recorded("sample", lambda: 1 / 0)()
    with pytest.raises(KeyError), recorder.scope("logits"):
        raise KeyError
    recording = read_recording(tmp_path, "runner")
    assert recording is not None and len(recording.records) == 2


def test_what_does_not_fit_is_left_out(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "runner", capacity=3)
    for begin in range(1, 6):
        recorder.add(1, begin, begin + 1)
    recording = read_recording(tmp_path, "runner")
    assert recording is not None and recording.records[:, 1].tolist() == [1, 2, 3]


def test_nothing_was_recorded(tmp_path: Path) -> None:
    Recorder(tmp_path, "runner", capacity=3)
    assert read_recording(tmp_path, "runner") is None
    assert read_recording(tmp_path, "no such recorder") is None


def test_another_process_records_and_is_killed(tmp_path: Path) -> None:
    """It hears the switch, its clock is this one's, and what it recorded is there."""
    switch = Switch(tmp_path)
    switch.turn(True)
    child = os.fork()
    if child == 0:
        recorder = Recorder(tmp_path, "runner", capacity=3)
        if Switch(tmp_path).on:
            with recorder.scope("sample"):
                Switch(tmp_path).turn(False)
        os.kill(os.getpid(), 9)
    costs = cost_ns(tmp_path, times=10, repeats=3)
    os.waitpid(child, 0)
    assert not switch.on
    recording = read_recording(tmp_path, "runner")
    assert recording is not None and recording.process == child
    assert len(costs) == 2
