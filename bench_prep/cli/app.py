"""The command line: its commands in the order of a user's work, and how it ends."""

from __future__ import annotations

import signal
import sys
from typing import Annotated, Any

import typer
from rich.markup import escape

from bench_prep import __version__
from bench_prep.cli.build import build
from bench_prep.cli.cache import cache
from bench_prep.cli.calibrate import calibrate
from bench_prep.cli.check_log import check_log
from bench_prep.cli.engine import engine
from bench_prep.cli.options import Commands, console
from bench_prep.cli.prove import prove
from bench_prep.cli.report import report
from bench_prep.cli.run import run
from bench_prep.cli.screen import Screen
from bench_prep.cli.serve import serve
from bench_prep.cli.steps import steps
from bench_prep.cli.streams import lasting_streams
from bench_prep.cli.sweep import sweep
from bench_prep.cli.verify_install import verify_install
from bench_prep.errors import EXIT_FAULT, REPORT_FAULT, BenchPrepError, Missing, printable

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
app.command()(run)
app.command()(report)
app.command("verify-install")(verify_install)
app.command()(build)
app.command()(engine)
app.command()(steps)
app.command()(sweep)
app.command()(serve)
app.add_typer(prove, name="prove")
app.command("check-log")(check_log)
app.command()(calibrate)
app.command()(cache)
#: Their result is in a file, whatever becomes of what they print.
_STORING = {"run", "engine", "steps", "sweep", "serve", "calibrate"}
_errors = Screen(stderr=True, emoji=False)


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


def main() -> None:
    """Run the command line; errors are one or two lines and an exit code."""
    printed = lasting_streams()
    # Being ended is like Ctrl-C: what was started is ended too, and nothing is half-written.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP
            signal.signal(number, signal.default_int_handler)
    code = _exit_code("--debug" in sys.argv)
    sys.stdout.flush()
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    if printed.lost and not code and (command not in _STORING or "--help" in sys.argv):
        full = Missing(f"the output cannot be written: {printed.lost}", "free space there")
        _complain("error", full.message, full.remedy)
        code = full.exit_code
    raise SystemExit(code)


def _exit_code(debug: bool) -> int:
    try:
        return app(standalone_mode=False) or 0
    except BenchPrepError as error:
        if debug:
            _errors.print_exception()
        _complain("error", error.message, error.remedy)
        return error.exit_code
    except _WrongUsage as error:
        if message := error.format_message():  # none: the help was shown instead
            command = error.ctx.command_path if error.ctx else "bench-prep"
            _complain("error", message, f"{command} --help")
        return int(error.exit_code)
    except Exception as error:
        if debug:
            _errors.print_exception()
        _complain("fault", f"{type(error).__name__}: {error}", REPORT_FAULT)
        return EXIT_FAULT


def _complain(kind: str, message: str, remedy: str) -> None:
    message, remedy = (escape(printable(text)) for text in (message, remedy))
    _errors.print(f"[red]{kind}:[/red] {message}", highlight=False, soft_wrap=True)
    if remedy:
        _errors.print(f"[yellow]try:[/yellow] {remedy}", highlight=False, soft_wrap=True)
