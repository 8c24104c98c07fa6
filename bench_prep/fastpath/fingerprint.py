"""Which vLLM sources the fast path has been proven equal to.

The fast path replaces `_prepare_inputs` and relies on what surrounds it. Both are identified by
the SHA-256 of their source text, so that an edited method closes the gate, whatever the version
number says, and so does one that another program put in its place.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import inspect
import json
import re
import sys
import textwrap
import types
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

KNOWN_FILE = Path(__file__).with_name("known.json")

#: Replaced or relied on by the V1 runner's binding; a missing one is part of the fingerprint.
RUNNER_METHODS = (
    "_prepare_inputs",
    "_prepare_input_ids",
    "_compute_prev_positions",
    "_calc_mrope_positions",
    "_get_cumsum_and_arange",
    "_update_states",
    "_bookkeeping_sync",
    "_get_slot_mappings",
    "_build_attention_metadata",
    "synchronize_input_prep",
    # What writes, between two preparations, buffers that a preparation fills.
    "execute_model",
    "sample_tokens",
    "_preprocess",
    "_may_reorder_batch",
    "_update_states_after_model_execute",
    "_dummy_run",
)
SOURCES = (
    "vllm.v1.worker.block_table",
    "vllm.v1.utils:CpuGpuBuffer",
    "vllm.v1.worker.gpu_input_batch:InputBatch",
    "vllm.v1.worker.gpu_input_batch:CachedRequestState",
    "vllm.model_executor.layers.rotary_embedding.mrope:"
    "MRotaryEmbedding.get_next_input_positions_tensor",
)
CPU_SOURCES = (
    "vllm.v1.worker.cpu_model_runner:CPUModelRunner._postprocess_tensors",
    "vllm.utils.cpu_triton_utils:_compute_slot_mapping_kernel_impl",
)
#: Whose functions may be in vLLM's classes or wrap its methods: its own, and its decorators'.
_TRUSTED = {"vllm", "torch", *sys.stdlib_module_names} - {"__main__"}
_PART_DIGITS = 16
_SHOWN = 3
_DEFINITION = re.compile(r"\s*(async\s+)?(def|class)\s")


@dataclass(frozen=True)
class KnownSource:
    """A proven source: its version, its platform and the arity of `_prepare_inputs`' result.

    `parts` has the first digits of the SHA-256 of each part's source text, by the part's name.
    """

    vllm: str
    platform: str
    returns: int
    parts: dict[str, str]


@functools.cache
def known() -> dict[str, Any]:
    """The proven sources, devices and architectures: data, in `known.json`."""
    data: dict[str, Any] = json.loads(KNOWN_FILE.read_text(encoding="utf-8"))
    return data


def known_versions() -> dict[str, str]:
    """The versions of vLLM whose sources are proven, each with its platform."""
    return {entry["vllm"]: entry["platform"] for entry in known()["sources"].values()}


def fingerprint(runner_class: type, platform: str) -> str:
    """SHA-256, in hex, over the source text of all that the binding replaces or relies on."""
    return combined(_texts(runner_class, platform))


def known_source(runner_class: type, platform: str) -> KnownSource | None:
    """The proven source that this runner's is, or None."""
    entry = known()["sources"].get(fingerprint(runner_class, platform))
    return None if entry is None else KnownSource(**entry)


def admit(runner_class: type, platform: str, vllm: str, returns: int) -> tuple[str, KnownSource]:
    """Take a source as proven, in this process alone; its fingerprint and what it now is."""
    text = _texts(runner_class, platform)
    source = KnownSource(vllm, platform, returns, short_hashes(text))
    known()["sources"][combined(text)] = asdict(source)
    return combined(text), source


def part_hashes(runner_class: type, platform: str) -> dict[str, str]:
    """The first digits of the SHA-256 of each part's source text, by the part's name."""
    return short_hashes(_texts(runner_class, platform))


def what_differs(parts: dict[str, str], platform: str) -> str:
    """Which of these hashes, by part, are not the nearest proven source's, in words.

    Empty where a proven source has them all, and where none is known for the platform.
    """
    differing = {
        entry["vllm"]: [name for name in parts if entry["parts"].get(name) != parts[name]]
        for entry in known()["sources"].values()
        if entry["platform"] == platform
    }
    if not all(differing.values()) or not differing:
        return ""
    nearest = min(differing, key=lambda version: len(differing[version]))
    names = [re.split("[.:]", name)[-1] for name in differing[nearest]]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    verb = "is" if len(names) == 1 else "are"
    return f"{', '.join(names[:_SHOWN])}{more} {verb} not vLLM {nearest}'s"


def combined(texts: dict[str, str]) -> str:
    """The fingerprint of source texts, by part, in the order of the parts."""
    digest = hashlib.sha256()
    for name, text in texts.items():
        digest.update(f"\0{name}\0{text}".encode())
    return digest.hexdigest()


def short_hashes(texts: dict[str, str]) -> dict[str, str]:
    """The hash of each source text, by part."""
    return {
        name: hashlib.sha256(text.encode()).hexdigest()[:_PART_DIGITS]
        for name, text in texts.items()
    }


def look_again() -> None:
    """Read the sources anew: something may have been replaced since."""
    _texts.cache_clear()


@functools.cache
def _texts(runner_class: type, platform: str) -> dict[str, str]:
    found = {name: getattr(runner_class, name, None) for name in RUNNER_METHODS}
    for name in SOURCES + (CPU_SOURCES if platform == "cpu" else ()):
        found[name] = _resolve(name)
    return {name: _source(value) for name, value in found.items()}


def _resolve(name: str) -> Any:
    module_name, _, attribute = name.partition(":")
    try:
        value: Any = importlib.import_module(module_name)
        for part in attribute.split(".") if attribute else ():
            value = getattr(value, part)
    except (ImportError, AttributeError):
        return None
    return value


def _source(value: Any) -> str:
    if value is None:
        return "absent"
    try:
        strange = _strangers(value)
        if strange:
            return f"replaced: {strange}"
        return _class_source(value) if isinstance(value, type) else _function_source(value)
    except (OSError, TypeError, SyntaxError, AttributeError):  # the last from a proxy
        return "no source"


def _strangers(value: Any) -> list[str]:
    """Functions of another program in a class, or in the classes of a module."""
    if isinstance(value, types.ModuleType):
        own = [v for v in vars(value).values() if getattr(v, "__module__", "") == value.__name__]
        return [name for item in own if isinstance(item, type) for name in _strangers(item)]
    if not isinstance(value, type):
        return []
    return [
        f"{value.__name__}.{name} by {item.__globals__['__name__']}"
        for name, member in vars(value).items()
        for item in _with_wrapped(_function(member))
        if not _trusted(item)
    ]


def _with_wrapped(value: Any) -> Iterator[types.FunctionType]:
    """The function, and those that it wraps."""
    while isinstance(value, types.FunctionType):
        yield value
        value = getattr(value, "__wrapped__", None)


def _function(member: Any) -> Any:
    """The function in a static or class method or a property, else the member itself."""
    if isinstance(member, property):
        return member.fget
    return getattr(member, "__func__", member)


def _trusted(function: Any) -> bool:
    return _program(function) in _TRUSTED


def _program(value: Any) -> str:
    """The program that a function or a module is of."""
    names = vars(value) if isinstance(value, types.ModuleType) else value.__globals__
    return str(names["__name__"]).partition(".")[0]


def _function_source(value: Any) -> str:
    """The source text of a function with its decorators, or of a module.

    Each wrapper must be of a decorator in that text: `functools.wraps` around a method hides the
    wrapper from `inspect.getsource`.
    """
    wrappers = []
    while hasattr(value, "__wrapped__"):
        wrappers.append(value)
        value = value.__wrapped__
    if isinstance(value, types.ModuleType):
        return inspect.getsource(value)
    source = block_text(*inspect.findsource(value))
    if wrappers:
        definition = ast.parse(textwrap.dedent(source)).body[0]
        expected = len(getattr(definition, "decorator_list", ()))
        if len(wrappers) > expected or not all(map(_trusted, wrappers)):
            return f"wrapped: {[w.__globals__['__name__'] for w in wrappers]}"
    return source


def _class_source(value: type) -> str:
    """The source text of a class that is defined once and has all its functions in that text."""
    module = importlib.import_module(value.__module__)
    lines = inspect.findsource(module)[0]
    begins = re.compile(rf"class {value.__name__}\b")
    found = [index for index, line in enumerate(lines) if begins.match(line)]
    if len(found) != 1:
        return f"defined {len(found)} times"
    first = found[0]
    while first and lines[first - 1].startswith("@"):
        first -= 1
    text = block_text(lines, first)
    inside = range(first + 1, first + 1 + text.count("\n"))
    elsewhere = [
        name
        for name, member in vars(value).items()
        for item in _with_wrapped(_function(member))
        if not _stands_in(item, module, inside)
    ]
    return f"replaced: {elsewhere}" if elsewhere else text


def _stands_in(function: Any, module: Any, lines: range) -> bool:
    """Whether a function of a class is in these lines of its module, or not one of vLLM's.

    Others are decorators', or made by `dataclass`.
    """
    code = function.__code__
    if _program(function) != _program(module) or code.co_filename.startswith("<"):
        return True
    return function.__globals__ is vars(module) and code.co_firstlineno in lines


def block_text(lines: list[str], first: int) -> str:
    """The function or class that begins, with its decorators, in the line with index `first`.

    The same as `inspect.getsource`, which takes milliseconds because it parses.
    """
    indent = len(lines[first]) - len(lines[first].lstrip())
    statement = re.compile(rf" {{0,{indent}}}[\w@]")
    end = first
    while not _DEFINITION.match(lines[end]):
        end += 1
    last = end
    while end + 1 < len(lines) and not statement.match(lines[end + 1]):
        end += 1
        if lines[end].strip() and len(lines[end]) - len(lines[end].lstrip()) > indent:
            last = end
    return "".join(lines[first : last + 1])
