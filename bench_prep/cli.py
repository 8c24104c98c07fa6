"""The command line: parse, call, print, exit code; no logic."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from bench_prep import __version__
from bench_prep.cli_options import (
    BudgetOption,
    CandidateOption,
    Commands,
    ConfigArgument,
    DeviceOption,
    MarginOption,
    NoBuildOption,
    OutputOption,
    PrecompiledOption,
    WorktreeOption,
    console,
)
from bench_prep.cli_prove import prove
from bench_prep.cli_serve import serve
from bench_prep.cli_steps import steps
from bench_prep.cli_sweep import sweep
from bench_prep.command import command_line
from bench_prep.errors import EXIT_FAULT, REPORT_FAULT, BenchPrepError, UsageError

#: Typer carries a Click of its own or uses the installed one; its usage errors know theirs.
_WrongUsage: Any = typer.BadParameter.__mro__[1]


app = typer.Typer(
    cls=Commands,
    name="bench-prep",
    help="Times changes to vLLM's per-step input preparation, and proves what was timed.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.add_typer(prove, name="prove")
app.command()(steps)
app.command()(serve)
app.command()(sweep)
_errors = Console(stderr=True, emoji=False)


def _version(shown: bool) -> None:
    if shown:
        console.print(f"bench-prep {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option(help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Times changes to vLLM's per-step input preparation, and proves what was timed."""


@app.command()
def run(
    context: typer.Context,
    worktree: WorktreeOption = None,
    precompiled: PrecompiledOption = None,
    no_build: NoBuildOption = False,
    against: Annotated[
        Path | None,
        typer.Option(
            help="Worktree of the baseline, to time the other worktree's preparation against."
        ),
    ] = None,
    position: Annotated[
        int | None,
        typer.Option(help="Tokens already computed for the request. Default: 24576."),
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option(help="Longest request, in tokens. Default: 32768.")
    ] = None,
    max_num_reqs: Annotated[
        int | None, typer.Option(help="Largest batch, in requests. Default: 128.")
    ] = None,
    max_num_tokens: Annotated[
        int | None, typer.Option(help="Most tokens in one step. Default: 4096.")
    ] = None,
    block_sizes: Annotated[
        str | None,
        typer.Option(help="Block size of each KV group, in tokens, with commas. Default: 16,16."),
    ] = None,
    mrope: Annotated[
        bool | None, typer.Option("--mrope/--no-mrope", help="Three position rows (M-RoPE).")
    ] = None,
    prompt_embeds: Annotated[
        bool | None,
        typer.Option("--prompt-embeds/--no-prompt-embeds", help="The prompt is embeddings."),
    ] = None,
    warmup: Annotated[
        int | None, typer.Option(help="Untimed steps before each block. Default: 100.")
    ] = None,
    iters: Annotated[
        int | None, typer.Option(help="Timed steps of each block, at most. Default: 2000.")
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            help="Fixed number of baseline / candidate / baseline rounds, which only --budget "
            "ends early; a verdict needs 10."
        ),
    ] = None,
    margin: MarginOption = None,
    budget: BudgetOption = None,
    device: DeviceOption = None,
    preset: Annotated[
        str | None, typer.Option(help="Preset in configs/, or a TOML file; flags override it.")
    ] = None,
    candidate: CandidateOption = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Seed of the requests and of the steps that are checked while they are timed. "
            "Default: a new one."
        ),
    ] = None,
    tpot_ms: Annotated[
        float | None,
        typer.Option(help="The service's time per output token, in ms, to show the share of it."),
    ] = None,
    output: OutputOption = Path("bench-prep-results.csv"),
) -> None:
    """The whole claim: build, verify, launch, prove equal, time, write, show.

    Without --worktree the installed vLLM is timed as it is.
    """
    from bench_prep.settings import resolve

    names = (
        "position", "max_model_len", "max_num_reqs", "max_num_tokens", "block_sizes", "mrope",
        "prompt_embeds", "warmup", "iters", "rounds", "margin", "budget", "device", "candidate",
        "seed", "tpot_ms",
    )  # fmt: skip
    given = locals()
    flags: dict[str, Any] = {name: given[name] for name in names}
    settings = resolve(preset, flags)

    from bench_prep.run import run as run_all
    from bench_prep.source import Source

    source = Source(worktree, precompiled, build=not no_build, against=against)
    command = command_line(context, worktree=worktree, precompiled=precompiled)
    raise typer.Exit(run_all(settings, source, output, console, command))


@app.command("verify-install")
def verify_install(
    worktree: WorktreeOption = None,
    result: Annotated[
        Path | None, typer.Option(help="Result CSV: is it still the vLLM of a run in it?")
    ] = None,
    run_id: Annotated[
        str | None, typer.Option("--run", help="Run in --result. Default: the last one.")
    ] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="Content of compiled parts too, not only their size.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object; the README names its keys.")
    ] = False,
) -> None:
    """Is the installed vLLM this worktree? Exit code 5, with files and reasons, if it is not."""
    from bench_prep.verify_install import verify_install as check

    if run_id is not None and result is None:
        raise UsageError("--run names a run of a result file", "give --result FILE too")
    check(worktree, result, run_id, whole=whole, as_json=as_json, console=console)


@app.command()
def build(
    worktree: WorktreeOption = None,
    precompiled: PrecompiledOption = None,
    device: DeviceOption = None,
    install: Annotated[
        bool, typer.Option("--install/--no-install", help="Install the wheel too.")
    ] = False,
) -> None:
    """The wheel alone: built from the worktree, or reused when nothing changed."""
    from bench_prep.provenance.worktree import open_worktree
    from bench_prep.source import build_only
    from bench_prep.stages import Stages

    if worktree is None:
        raise UsageError("build needs a worktree", "give --worktree DIR")
    build_only(open_worktree(worktree), precompiled, device or "auto", install, Stages(console))


@app.command()
def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove it, after a question.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing.")] = False,
    edited: Annotated[
        list[str] | None,
        typer.Option(help="Official worktree to remove although you have edited it; repeatable."),
    ] = None,
) -> None:
    """Where downloads, wheels, logs and environments are kept, and the size of each."""
    from bench_prep import cache as cached

    if (yes or edited) and not clear:
        raise UsageError(
            f"{'--yes' if yes else '--edited'} is for --clear alone", "give --clear too"
        )
    if clear:
        cached.clear(console, yes, edited or ())
    else:
        cached.show(console)


@app.command()
def report(
    files: Annotated[list[Path], typer.Argument(help="Result CSV files, any number of runs.")],
    markdown: Annotated[bool, typer.Option("--markdown", help="Markdown tables.")] = False,
    tpot_ms: Annotated[
        float | None,
        typer.Option(help="Time per output token, in ms, for rows that were written without."),
    ] = None,
) -> None:
    """Any number of runs in one view, labelled by what differs between them."""
    from bench_prep.report.overview import run_report

    run_report(files, markdown, console, tpot_ms)


@app.command()
def engine(
    model: ConfigArgument,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Prompt's length, in tokens.")] = 4000,
    max_model_len: Annotated[int, typer.Option(min=3, help="Longest request, in tokens.")] = 32768,
    stretch: Annotated[int, typer.Option(min=1, help="Timed steps of each stretch.")] = 64,
    rounds: Annotated[
        int | None,
        typer.Option(
            min=1, help="Fixed number of rounds of three stretches, which only --budget ends early."
        ),
    ] = None,
    margin: MarginOption = None,
    budget: BudgetOption = None,
    device: DeviceOption = None,
    output: OutputOption = Path("bench-prep-results.csv"),
) -> None:
    """The preparation inside a running engine: vLLM's own, the fast path, vLLM's own.

    One real engine with random weights decodes one request; stretches of its steps alternate.
    """
    from bench_prep.engine.timing import time_engine
    from bench_prep.settings import resolve

    chosen = resolve(None, {"iters": stretch, "rounds": rounds, "margin": margin, "budget": budget})
    if prompt_tokens > max_model_len - 2:
        raise UsageError(
            f"--prompt-tokens {prompt_tokens} leaves no room in --max-model-len {max_model_len}",
            "give a shorter prompt or a longer model length",
        )
    raise typer.Exit(
        time_engine(
            model,
            device or "auto",
            prompt_tokens=prompt_tokens,
            max_model_len=max_model_len,
            method=chosen.method,
            output=output,
            command=command_line(),
            console=console,
        )
    )


@app.command()
def calibrate(
    runs: Annotated[int, typer.Option(min=1, help="Verdicts on each thing planted.")] = 20,
    budget: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Most seconds of timing for a verdict.")
    ] = 6.0,
    margin: Annotated[
        float, typer.Option(min=0.01, max=50, help="Differences up to this many per cent are none.")
    ] = 1.0,
    effects: Annotated[
        str, typer.Option(help="Planted slow-downs in per cent, with commas; 0: equal arms.")
    ] = "0,0.5,1,2,5",
    conditions: Annotated[
        str, typer.Option(help="What is planted besides, with commas: none, drift, steps, load.")
    ] = "none,drift,steps,load",
    device: DeviceOption = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Seed of all that is drawn. Default: a new one, in the CSV."),
    ] = None,
    output: Annotated[
        Path,
        typer.Option(
            help="CSV file, one row a verdict; what it has of the same seed is not repeated."
        ),
    ] = Path("bench-prep-calibration.csv"),
    show: Annotated[
        list[Path] | None,
        typer.Option(help="Only the table of such a CSV file; repeatable, for one table of all."),
    ] = None,
) -> None:
    """Is the harness right on this machine? Itself against itself, and planted slow-downs."""
    import secrets

    from bench_prep.calibrate import run as calibrating

    if show:
        calibrating.show(show, console)
        return
    from bench_prep.measure.method import Method

    planted = calibrating.cells(conditions, effects)
    calibration = calibrating.Calibration(
        cells=planted,
        runs=runs,
        seed=secrets.randbelow(2**31) if seed is None else seed,
        works=calibrating.works_of(device or "auto"),
        method=Method(margin=margin / 100, budget_s=budget),
    )
    raise typer.Exit(calibrating.calibrate(calibration, output, console, command_line()))


@app.command("check-log")
def check_log(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Log of one vLLM service: its files in any order, .gz too; - is stdin."
        ),
    ],
    min_share: Annotated[
        float | None,
        typer.Option(min=0, max=100, help="Least share of the decode steps, in per cent."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object; the README names its keys.")
    ] = False,
) -> None:
    """Is the fast path used in a service? Its log tells; the README names the exit codes."""
    from bench_prep.serving.check_log import check_log as check

    check(files, min_share=min_share, as_json=as_json, console=console)


def main() -> None:
    """Run the command line; errors are one or two lines and an exit code."""
    debug = "--debug" in sys.argv
    # Being ended is like Ctrl-C: what was started is ended too, and nothing is half-written.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP
            signal.signal(number, signal.default_int_handler)
    try:
        raise SystemExit(app(standalone_mode=False))
    except BenchPrepError as error:
        if debug:
            _errors.print_exception()
        _complain("error", error.message, error.remedy)
        raise SystemExit(error.exit_code) from None
    except _WrongUsage as error:
        if message := error.format_message():  # none: the help was shown instead
            command = error.ctx.command_path if error.ctx else "bench-prep"
            _complain("error", message, f"{command} --help")
        raise SystemExit(error.exit_code) from None
    except Exception as error:
        if debug:
            _errors.print_exception()
        _complain("fault", f"{type(error).__name__}: {error}", REPORT_FAULT)
        raise SystemExit(EXIT_FAULT) from None


def _complain(kind: str, message: str, remedy: str) -> None:
    _errors.print(f"[red]{kind}:[/red] {escape(message)}", highlight=False, soft_wrap=True)
    if remedy:
        _errors.print(f"[yellow]try:[/yellow] {escape(remedy)}", highlight=False, soft_wrap=True)
