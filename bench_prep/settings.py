"""One validated settings object: defaults < preset (configs/*.toml) < flags."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from bench_prep.errors import UsageError

OUR_CANDIDATE = "bench_prep.fastpath:attach"
#: The same in the results of a whole engine, which loads it as a plugin.
AS_PLUGIN = "bench_prep.fastpath.plugin:register"
#: What stands for the candidate in the results of a comparison of worktrees.
OF_WORKTREE = "worktree:GPUModelRunner._prepare_inputs"


#: Seconds after which a timing ends that was given neither a budget nor rounds.
BUDGET_S = 60.0

#: vLLM counts tokens in 32 bits.
_MOST_TOKENS = 2**31 - 1


@dataclass(frozen=True)
class Method:
    """What is timed, how long, and how small a difference counts as none.

    Attributes:
        warmup: untimed steps of each block, spread over its slices (at least one a slice).
        iters: timed steps of each block, at most: fewer where `measure.plan.ROUNDS_IN_BUDGET`
            rounds would not fit into the budget.
        margin: a difference up to this fraction of the baseline counts as none.
        budget_s: seconds after which the timing ends, whatever is known by then; None: `BUDGET_S`,
            or no limit where `rounds` is given.
        rounds: a fixed number of rounds, which no target width ends early, but a given budget does.
    """

    warmup: int = 100
    iters: int = 2000
    margin: float = 0.01
    budget_s: float | None = None
    rounds: int | None = None

    def __post_init__(self) -> None:
        if self.warmup < 0 or self.iters < 1:
            raise ValueError("a block has at least one timed step, and no negative warm-up")
        if not 0 < self.margin < 1:
            raise ValueError(f"a margin is a fraction between 0 and 1, not {self.margin}")
        if self.budget_s is not None and not 0 < self.budget_s < math.inf:
            raise ValueError(f"a budget is a number of seconds above zero, not {self.budget_s}")
        if self.rounds is not None and self.rounds < 1:
            raise ValueError("at least one round")

    @property
    def limit_s(self) -> float:
        """Seconds after which the timing ends: `budget_s` and what follows where it is None."""
        if self.budget_s is not None:
            return self.budget_s
        return BUDGET_S if self.rounds is None else math.inf


class RunSettings(BaseModel):
    """What a run times. Positions and lengths are in tokens; iterations are decode steps.

    `margin` is in percent of the baseline's time, `budget` in seconds; None as in
    `Method`. `seed` draws requests and checked steps; None: a new one, once the candidate
    has been loaded.

    The defaults are the published setting (`configs/reference.toml`).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    position: int = Field(24576, ge=1)
    max_model_len: int = Field(32768, ge=3)
    max_num_reqs: int = Field(128, ge=1)
    max_num_tokens: int = Field(4096, ge=1)
    block_sizes: tuple[int, ...] = (16, 16)
    mrope: bool = False
    prompt_embeds: bool = False
    warmup: int = Field(100, ge=0, le=1_000_000)
    iters: int = Field(2000, ge=1, le=1_000_000)
    margin: float = Field(1.0, gt=0, lt=100)
    budget: float | None = Field(None, gt=0, allow_inf_nan=False)
    rounds: int | None = Field(None, ge=1, le=10_000)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    candidate: str = OUR_CANDIDATE
    seed: int | None = Field(None, ge=0, lt=2**32)
    tpot_ms: float | None = Field(None, gt=0, allow_inf_nan=False)

    @field_validator("block_sizes", mode="before")
    @classmethod
    def _parse_block_sizes(cls, value: Any) -> Any:
        if isinstance(value, str):
            try:
                return tuple(int(part) for part in value.split(","))
            except ValueError:
                raise ValueError(
                    f"'{value}' is not a comma-separated list of whole numbers such as 16,16"
                ) from None
        return value

    @model_validator(mode="after")
    def _check(self) -> RunSettings:
        if not self.block_sizes or not all(0 < size <= _MOST_TOKENS for size in self.block_sizes):
            raise ValueError(
                f"block sizes must be whole numbers from 1 to {_MOST_TOKENS}, such as 16,16"
            )
        if self.position > self.max_model_len - 2:
            raise ValueError(
                f"position {self.position} leaves no room for a decode step and its sampled token "
                f"in a model length of {self.max_model_len} tokens (largest position: "
                f"{self.max_model_len - 2})"
            )
        if self.max_num_tokens < self.max_num_reqs:
            raise ValueError("max-num-tokens must be at least max-num-reqs")
        if not all(self.candidate.rpartition(":")):
            raise ValueError(f"candidate '{self.candidate}' is not of the form module:attribute")
        return self

    @property
    def method(self) -> Method:
        """How the two arms are compared."""
        return Method(
            warmup=self.warmup,
            iters=self.iters,
            margin=self.margin / 100,
            budget_s=self.budget,
            rounds=self.rounds,
        )

    @property
    def candidate_file(self) -> Path | None:
        """The candidate's file; None when it is a module."""
        where = self.candidate.rpartition(":")[0]
        return Path(where) if where.endswith(".py") else None

    def for_another_folder(self) -> RunSettings:
        """The same settings for a process that works in another folder."""
        if self.candidate_file is None:
            return self
        attribute = self.candidate.rpartition(":")[2]
        return self.model_copy(
            update={"candidate": f"{self.candidate_file.absolute()}:{attribute}"}
        )

    @property
    def block_sizes_text(self) -> str:
        return ",".join(str(size) for size in self.block_sizes)


def presets_folder() -> Path:
    """`configs/`: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent
    packaged = package / "configs"
    return packaged if packaged.is_dir() else package.parent / "configs"


def load_preset(name: str) -> dict[str, Any]:
    """The `[run]` table of a preset, named by its file stem or given as a path.

    Raises:
        UsageError: no such preset, or not a TOML file with a `[run]` table.
    """
    given = Path(name)
    path = given if given.suffix == ".toml" else presets_folder() / f"{name}.toml"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in presets_folder().glob("*.toml"))) or "none"
        raise UsageError(f"no preset '{name}'", f"known presets: {known}; or give a .toml file")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8")).get("run")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"preset {path} is not valid TOML: {error}", "correct the file") from None
    if not isinstance(table, dict):
        raise UsageError(f"preset {path} has no [run] table", "put the options under [run]")
    return {key.replace("-", "_"): value for key, value in table.items()}


def resolve(preset: str | None, flags: dict[str, Any]) -> RunSettings:
    """Defaults, then the preset, then every flag that was given (is not None).

    Raises:
        UsageError: a value that is out of range or unknown, named with its option.
    """
    values = load_preset(preset) if preset else {}
    values |= {key: value for key, value in flags.items() if value is not None}
    try:
        return RunSettings(**values)
    except ValidationError as error:
        first = error.errors()[0]
        option = "--" + str(first["loc"][0]).replace("_", "-") + ": " if first["loc"] else ""
        text = first["msg"].removeprefix("Value error, ")
        raise UsageError(f"{option}{text}", "see bench-prep run --help") from None
