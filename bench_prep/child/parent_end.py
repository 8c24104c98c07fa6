"""The parent's end of a launch: send commands, receive events until the child is done."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from bench_prep.child.channel import Done, Event, Failed
from bench_prep.child.log_end import end_of
from bench_prep.errors import BenchPrepError, error_of

Answer = TypeVar("Answer", bound=Event)
#: Seconds that a child which has failed has to end.
_LOG_S = 5.0


class Child:
    """A running child: commands to it, events from it; its log is the only other thing it says.

    `who` it is; `named`: whether what it reports is told as its word, as where there are several.
    `marks`: what the lines of its log have that say what was wrong, where it has processes of its
    own which say so there alone; with them every error shows such lines.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        pipe: Any,
        log: Path,
        who: str,
        named: bool,
        marks: Sequence[str],
    ) -> None:
        self._process = process
        self._events = _events(pipe, process)
        self._log, self._who, self._named, self._marks = log, who, named, marks

    def receive(self) -> Event | None:
        """The next event; None once the child is done.

        Raises:
            BenchPrepError: what the child reports; or that it ended early, or sent something that
                is no event.
        """
        match next(self._events, None):
            case Done():
                return None
            case Failed() as failed:
                with suppress(subprocess.TimeoutExpired):  # until all of its log is there
                    self._process.wait(_LOG_S)
                message = f"{self._who}: {failed.message}" if self._named else failed.message
                if self._marks:
                    message += f"; {end_of(self._log, self._marks)}"
                error = error_of(failed.exit_code, message, failed.remedy)
                error.add_note(failed.traceback)
                raise error
            case None:
                raise BenchPrepError(self.ending(), f"the whole output is in {self._log}")
            case event:
                return event

    def events(self) -> Iterator[Event]:
        """Its events, as they come, until it is done.

        Raises:
            BenchPrepError: as `receive`.
        """
        while (event := self.receive()) is not None:
            yield event

    def ask(self, answer: type[Answer], **command: Any) -> Answer:
        """Send a command, and receive its answer, which is of this type.

        Raises:
            BenchPrepError: as `receive`; or it answers something else.
        """
        self.send(command)
        return self.answer(answer)

    def answer(self, answer: type[Answer]) -> Answer:
        """The next event, which is of this type.

        Raises:
            BenchPrepError: as `receive`; or it is of another.
        """
        event = self.receive()
        if not isinstance(event, answer):
            raise BenchPrepError(
                f"{self._who} sent {type(event).__name__} instead of {answer.__name__}",
                f"the whole output is in {self._log}",
            )
        return event

    def send(self, command: Mapping[str, Any]) -> None:
        """Send it a command; one that has ended does not hear it."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()

    def poll(self) -> int | None:
        """Its return code, negative for a signal; None while it runs."""
        return self._process.poll()

    def ending(self) -> str:
        """How it ended, with the end of its log; waits for it."""
        returned = self._process.wait()
        how = f"exit code {returned}"
        if returned < 0:
            names = {one.value: one.name for one in signal.Signals}
            how = names.get(-returned, f"signal {-returned}")
        return f"{self._who} ended early, with {how}; {end_of(self._log, self._marks)}"


def _events(pipe: Any, process: subprocess.Popen[bytes]) -> Iterator[Event]:
    """Events until the child has ended or has closed its pipe.

    The end of the pipe alone is not enough: a program that the child started may hold it open.
    """
    os.set_blocking(pipe.fileno(), False)
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while True:
            ended = process.poll() is not None
            selector.select(timeout=0 if ended else 0.2)
            chunk = pipe.read(1 << 16)  # None: nothing there now; b"": closed
            if chunk:
                *lines, rest = (rest + chunk).split(b"\n")
                yield from map(_parse, lines)
            elif chunk == b"" or ended:
                return  # an unfinished last line is from a child that was killed


def _parse(line: bytes) -> Event:
    try:
        fields = json.loads(line)
        event: Event = _adapter(fields.pop("event")).validate_python(fields)
        return event
    except (ValueError, KeyError, TypeError, AttributeError, ImportError):
        raise BenchPrepError(f"the process sent something unreadable: {line[:80]!r}") from None


@cache
def _adapter(name: str) -> Any:
    from pydantic import TypeAdapter

    module = name.partition(":")[0]
    if module.startswith("bench_prep."):  # its events may be of no further interest here
        import_module(module)
    return TypeAdapter(Event.known[name])
