"""`bench-prep serve`: parse, call, exit code; no logic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench_prep.cli.command_line import command_line
from bench_prep.cli.options import DeviceOption, ModelArgument, WeightsOption, console
from bench_prep.errors import UsageError


def serve(
    model: ModelArgument,
    weights: WeightsOption = False,
    tiers: Annotated[
        str | None,
        typer.Option(
            help="Lengths of prompts, in tokens. Default: 4096-8192,8192-16384,16384-32768; with "
            "--prompts, all in one."
        ),
    ] = None,
    requests: Annotated[
        int,
        typer.Option(min=1, help="Timed requests of each tier and server; a verdict needs 10."),
    ] = 12,
    output_tokens: Annotated[
        int, typer.Option(min=2, help="Tokens of each answer; with --prompts, at most.")
    ] = 128,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="JSONL of conversations, OpenAI messages or ShareGPT, maybe with answers."
        ),
    ] = None,
    sla_ttft_ms: Annotated[
        float | None, typer.Option(min=0, help="Most ms to the first token.")
    ] = None,
    sla_tpot_ms: Annotated[
        float | None, typer.Option(min=0, help="Most ms per further token.")
    ] = None,
    predicted: Annotated[
        Path | None,
        typer.Option(help="CSV of bench-prep engine or run: its saving beside the measured one."),
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="Measure this running service alone; it is not compared.")
    ] = None,
    log: Annotated[
        Path | None, typer.Option(help="With --url: its log, for the fast path's counters.")
    ] = None,
    serve_args: Annotated[
        str, typer.Option(help="More arguments of vllm serve, in one text; all servers get them.")
    ] = "",
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port on loopback. Default: free ones.")
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option(min=3, help="Longest request, in tokens. Default: what fits.")
    ] = None,
    margin: Annotated[
        float, typer.Option(min=0.01, max=50, help="Differences up to this many per cent are none.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the prompts.")] = 0,
    start_timeout: Annotated[
        float, typer.Option(min=1, help="Most seconds until a server is ready.")
    ] = 1200.0,
    stall_timeout: Annotated[
        float, typer.Option(min=0.1, help="Most seconds without anything from a server.")
    ] = 120.0,
    device: DeviceOption = None,
    output: Annotated[
        Path,
        typer.Option(help="CSV file that a row per tier and metric is added to."),
    ] = Path("bench-prep-serve.csv"),
) -> None:
    """The whole service: vllm serve without, with and again without the fast path.

    The same requests, one at a time, streamed: TTFT, TPOT, throughput, and whether outputs are
    identical.
    """
    if log is not None and url is None:
        raise UsageError("--log is the log of a service that is given by --url", "give --url too")
    if predicted is not None and url is not None:
        raise UsageError(
            "--predicted is a saving, and with --url nothing is compared", "leave one of them away"
        )

    from bench_prep.serve.command import Comparison
    from bench_prep.serve.figures import Limits
    from bench_prep.serve.load import Load
    from bench_prep.serve.processes import Patience

    load = Load(
        model=model,
        weights=weights,
        tiers=tiers,
        requests=requests,
        output_tokens=output_tokens,
        prompts=prompts,
        seed=seed,
        max_model_len=max_model_len,
        arguments=serve_args,
        port=port,
        margin=margin / 100,
        limits=Limits(sla_ttft_ms, sla_tpot_ms),
        patience=Patience(start_timeout, stall_timeout),
    )
    comparison = Comparison(
        load,
        device or "auto",
        output=output,
        command=command_line(),
        console=console,
        predicted=predicted,
    )
    raise typer.Exit(comparison.compare() if url is None else comparison.measure(url, log))
