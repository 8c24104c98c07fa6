"""`bench-prep serve`: a whole service without, with and again without the fast path."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from bench_prep import __version__
from bench_prep.child.device import require_device
from bench_prep.child.launch import temporary_folder
from bench_prep.child.memory import require_engines_memory
from bench_prep.engine.vllm.launch import engine_environment
from bench_prep.errors import (
    EXIT_INCONCLUSIVE,
    BenchPrepError,
    Interrupted,
    Missing,
    OutputsDiffer,
    UsageError,
)
from bench_prep.plugin_log.logs import read_logs
from bench_prep.plugin_log.usage import Usage, usage_in
from bench_prep.provenance.cachedir import cache_dir, new_log
from bench_prep.provenance.environments import cache_in_use
from bench_prep.provenance.hashes import file_sha256
from bench_prep.provenance.timed_vllm import Source, verified_vllm
from bench_prep.serve.answers import ARMS, Answer, Answers
from bench_prep.serve.figures import DECISIVE, TierResult, judge_tiers
from bench_prep.serve.load import LONGEST, Load, vocab_size
from bench_prep.serve.names import MODEL, SERVER
from bench_prep.serve.other_work import Meter
from bench_prep.serve.predicted import Predicted, predicted_by, prediction
from bench_prep.serve.processes import (
    Client,
    Service,
    ServiceFailed,
    asked,
    client,
    free_port,
    healthy,
    served,
    version_of,
)
from bench_prep.serve.prompts import (
    Conversation,
    Prompt,
    Tier,
    in_tiers,
    read_conversations,
    synthetic,
    tiers_of,
)
from bench_prep.serve.store import TABLE, requests_path, requests_text, rows
from bench_prep.serve.used import since, tuned_in, unused_reason, usage_of, used_text
from bench_prep.serve.view import tier_view
from bench_prep.stages import Stages

TIERS = "4096-8192,8192-16384,16384-32768"
_HEADS = dict(zip(ARMS, ("without", "with", "without again"), strict=True))


@dataclass
class _Run:
    """What is known so far."""

    prompts: dict[str, list[Prompt]] = field(default_factory=dict)
    conversations: list[Conversation] = field(default_factory=list)
    arms: dict[str, dict[str, Answers]] = field(default_factory=dict)
    usage: dict[str, Usage | None] = field(default_factory=dict)
    tuned: dict[str, int] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)


class Comparison:
    """One run of the command."""

    def __init__(
        self,
        load: Load,
        device: str,
        *,
        output: Path,
        command: str,
        console: Console,
        predicted: Path | None = None,
        server: str = SERVER,
    ) -> None:
        self.load, self.device, self.output, self.console = load, device, output, console
        self.stages, self.server = Stages(console), server
        self.run_id = uuid.uuid4().hex[:12]
        self.run = _Run()
        TABLE.check_writable(output)
        self.predicted = None if predicted is None else predicted_by(predicted)
        self.config_sha256 = ""
        if load.prompts is not None:
            self.run.conversations = read_conversations(load.prompts)
        given = load.tiers or (TIERS if load.prompts is None else None)
        self.tiers: list[Tier] = tiers_of(given) if given else []
        self.common: dict[str, Any] = {
            "run": self.run_id,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "model": load.model,
            "requests": load.requests,
            "output_tokens": load.output_tokens,
            "seed": load.seed,
            "margin_pct": 100 * load.margin,
            "sla_ttft_ms": load.limits.ttft_ms,
            "sla_tpot_ms": load.limits.tpot_ms,
            "bench_prep_version": __version__,
            "command": command,
        }

    def compare(self) -> int:
        """Three servers, one after the other; the exit code, 0 or 4.

        Raises:
            BenchPrepError: whatever stops it; rows of the finished servers are kept.
        """
        require_device(self.device)
        require_engines_memory(self.load.max_model_len or 0)
        self.load.require_tokenizer()
        free_port(self.load.port)
        with temporary_folder() as scratch, cache_in_use():
            folder = self.load.kept(self.load.folder(scratch))
            self.config_sha256 = file_sha256(folder / "config.json")
            _, provenance = verified_vllm(Source(), self.device, self.stages)
            self.common |= provenance
            self.stages.passed("logs", f"of the servers, in {cache_dir() / 'logs'}")
            with self.client() as asking:
                return self.in_turn(folder, asking)

    def client(self) -> AbstractContextManager[Client]:
        """The client's process, which asks all servers."""
        environment = engine_environment(self.device, fastpath=False)
        log = new_log(f"serve-{self.run_id}-client.log")
        return client(self.load.patience, environment, log)

    def in_turn(self, folder: Path, asking: Client) -> int:
        """The servers of the model in `folder`, and what is said about them, as `compare`."""
        most = max((tier.most for tier in self.tiers), default=0)
        self._fit(self.load.longest(folder, most))
        with _Kept(self):
            for arm in ARMS:
                self._arm(arm, folder, asking)
        return self._judged()

    def _fit(self, max_model_len: int) -> None:
        """Each tier must have prompts that leave room for an answer."""
        self.common["max_model_len"] = max_model_len
        self.room = max_model_len - self.load.output_tokens
        for tier in self.tiers:
            if tier.least > self.room:
                raise UsageError(
                    f"prompts of {tier.name} tokens and answers of {self.load.output_tokens} do "
                    f"not fit into the model's {max_model_len} tokens",
                    "give shorter --tiers, or --max-model-len",
                )

    def measure(self, url: str, log: Path | None) -> int:
        """A service that somebody else started, as it is; 0.

        Raises:
            BenchPrepError: whatever stops it.
        """
        url = url.rstrip("/").removesuffix("/v1")
        if not healthy(url):
            raise Missing(f"{url} is not ready: {url}/health does not answer", "start it first")
        with temporary_folder() as scratch:
            folder = self.load.folder(scratch)
            with self.client() as asking:
                return self.alone(Service(url, log), folder, asking)

    def alone(self, service: Service, folder: Path, asking: Client) -> int:
        """The same of a service that is ready, with this client."""
        cards = asked(service.url, "/v1/models").get("data")
        if not cards:
            raise ServiceFailed(f"{service.url} serves no model", "is it a vLLM server?")
        model, most = cards[0]["id"], cards[0].get("max_model_len")
        self.common["url"] = service.url
        self._fit(most or self.load.max_model_len or LONGEST)
        before = None if service.log is None else usage_in(read_logs([service.log]))
        with self.stages.running("service") as update:
            if not self.run.environment:
                asking.ready()
            # What the client knows is of its own machine and vLLM.
            self.run.environment = {"vllm_version": version_of(service.url)}
            self._prepare(service, folder, model)
            found = self._asked(service, asking, model, update)
            # It is no process of ours: its own work would be other work.
            found = {tier: replace(one, other_work=None) for tier, one in found.items()}
            self.run.arms["candidate"] = found
        version = self.run.environment["vllm_version"] or "of an unknown version"
        self.stages.passed(
            "service",
            f"{service.url}: vLLM {version}; its machine and its settings are not known here",
        )
        if service.log is None:
            self.stages.passed("fastpath", "not known whether it is used: give --log")
        else:
            steps = _steps(self.run.arms["candidate"]) + (before.decode_steps if before else 0)
            usage = self.run.usage["candidate"] = since(before, usage_of(service.log, steps))
            self.stages.passed("fastpath", used_text(usage))
        self._store({}, partial=False)
        return 0

    def _arm(self, arm: str, folder: Path, asking: Client) -> None:
        environment = engine_environment(self.device, fastpath=arm == "candidate")
        log = new_log(f"serve-{self.run_id}-{arm}.log")
        began = time.monotonic()
        with (
            self.stages.running(_HEADS[arm]) as update,
            served(
                self.load.serve_arguments(folder, self.device, self.common["max_model_len"]),
                environment,
                log,
                self.load.patience,
                port=self.load.port,
                module=self.server,
                update=update,
            ) as service,
        ):
            started = time.monotonic() - began
            self.run.environment = self.run.environment or asking.ready()
            self._prepare(service, folder, MODEL)
            answers = self._asked(service, asking, MODEL, update)
            usage = usage_of(log, _steps(answers))
        if arm != "candidate" and usage is not None and usage.dispatched:
            raise BenchPrepError("the fast path was used where it was turned off", f"see {log}")
        self.run.arms[arm], self.run.usage[arm] = answers, usage
        self.run.tuned[arm] = tuned_in(log)
        used = f"; Triton tuned {self.run.tuned[arm]} kernels" if self.run.tuned[arm] else ""
        if usage is not None and usage.decode_steps:
            used += f"; {usage.dispatched} of {usage.decode_steps} decode steps by the fast path"
            used += "".join(f", else {name}" for name, _ in usage.fallbacks.most_common(1))
        asked_for = sum(len(found.timed) for found in answers.values())
        self.stages.passed(
            _HEADS[arm],
            f"ready after {started:.0f} s, {asked_for} requests in "
            f"{time.monotonic() - began - started:.0f} s{used}; log {log.name}",
        )

    def _asked(
        self, service: Service, asking: Client, model: str, update: Callable[[str], None]
    ) -> dict[str, Answers]:
        found = {}
        for tier, prompts in self.run.prompts.items():
            answers, meter = [], Meter()
            for number, prompt in enumerate(prompts):
                update(f"prompts of {tier} tokens, request {number} of {len(prompts) - 1}")
                command = {
                    "model": model,
                    "prompt": prompt.tokens,
                    "max_tokens": self.load.output_tokens,
                    "logprobs": None,
                    "ignore_eos": self.load.prompts is None,
                }
                if number == 0:  # they cost the server time: no timed request asks for them
                    asking.ask(service, command, self.load.patience)
                    command["logprobs"] = 1
                event = asking.ask(service, command, self.load.patience)
                answers.append(Answer.of(event, len(prompt.tokens), prompt.answer))
            found[tier] = Answers(answers[0], tuple(answers[1:]), meter.other_work())
        return found

    def _prepare(self, service: Service, folder: Path, model: str) -> None:
        """The prompts, once for all servers; those of a file by the first server's tokenizer."""
        if self.run.prompts:
            return
        load = self.load
        if load.prompts is None:
            self.run.prompts = synthetic(
                self.tiers, load.requests, vocab_size(folder), load.seed, self.room
            )
            return
        tokenized = []
        for one in self.run.conversations:
            body = {"model": model, "messages": one.messages, "add_generation_prompt": True}
            tokenized.append((one, asked(service.url, "/tokenize", body)["tokens"]))
        fitting = in_tiers(tokenized, self.tiers, load.requests, self.room)
        self.run.prompts, left_out = fitting
        if left_out:
            self.stages.passed("prompts", f"{left_out} of {len(tokenized)} are in no tier")

    def _judged(self) -> int:
        unused = unused_reason(self.run.usage["candidate"])
        results = judge_tiers(self.run.arms, self.load.margin, self.load.limits, unused)
        different = {t: one for t, one in results.items() if one.difference and not one.unstable}
        self._store(results, partial=False, shown=not different)
        tuned = self.run.tuned["candidate"]
        why = f" (its server tuned {tuned} of Triton's kernels anew, which may be why)"
        for tier, result in different.items():
            raise OutputsDiffer(
                f"outputs differ for prompts of {tier} tokens: {result.difference}"
                + (why if tuned else ""),
                f"no timing is reported; every request is beside {self.output}",
            )
        if unused:
            raise Missing(f"the fast path was not used: {unused}", "see the log of its server")
        judged = [one.metrics.get(DECISIVE) for one in results.values()]
        known = all(one is not None and one.verdict != "inconclusive" for one in judged)
        return 0 if known else EXIT_INCONCLUSIVE

    def _store(
        self,
        results: dict[str, TierResult],
        *,
        partial: bool,
        problem: str = "",
        shown: bool = True,
    ) -> None:
        """Rows of all finished servers, every request beside them, and the tables."""
        usage = self.run.usage.get("candidate")
        common = self.common | self.run.environment | {"partial": partial, "problem": problem}
        if usage is not None:
            common |= {"decode_steps": usage.decode_steps, "dispatched": usage.dispatched}
        if "candidate" in self.run.usage:
            common["not_used"] = unused_reason(usage)
        lengths = {
            tier: ";".join(
                " ".join(str(len(one.tokens)) for one in found[tier].timed)
                for found in self.run.arms.values()
            )
            for tier in self.run.prompts
        }
        of_tier: dict[str, dict[str, dict[str, Any]]] = {
            DECISIVE: {tier: {"lengths": text} for tier, text in lengths.items()}
        }
        told, predicted = {}, self.predicted
        if predicted is not None:
            arguments = self.load.arguments
            predicted = predicted.of(self.config_sha256, arguments, self.run.environment)
        for tier, result in results.items():
            if predicted is not None and DECISIVE in result.metrics:
                measured = result.metrics[DECISIVE]
                told[tier] = prediction(predicted, measured, result.doubt(DECISIVE))
                of_tier[DECISIVE][tier] |= {
                    "predicted_ms": None if predicted.doubt else round(predicted.best, 6),
                    "prediction": told[tier],
                }
        made = rows(self.run.arms, results, self.load.limits, common, of_tier).to_dict("records")
        requests_file = requests_path(self.output, self.run_id)
        content = requests_text(self.run.arms)
        TABLE.keep(self.output, made, self.run_id, requests_file, content)
        if not partial and shown:
            for tier in self.run.prompts:
                found = {arm: tiers[tier] for arm, tiers in self.run.arms.items()}
                self.console.print(tier_view(tier, found, results.get(tier), self.load.limits))
                if tier in told and predicted is not None:
                    text = _told(predicted, results[tier], told[tier])
                    self.console.print(text, markup=False, highlight=False)
        self.stages.passed("result", f"{self.output}; every request in {requests_file}")


def _steps(answers: dict[str, Answers]) -> int:
    """The decode steps that these answers took; the warm-up's request was sent twice."""
    sent = [one for found in answers.values() for one in (*found.all, found.warmup)]
    return sum(len(one.tokens) - 1 for one in sent)


class _Kept:
    """What was finished is kept when something stops the run."""

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        finished = len(self._comparison.run.arms)
        interrupted = isinstance(error, KeyboardInterrupt)
        if not finished or not (interrupted or isinstance(error, BenchPrepError)):
            return
        problem = "interrupted" if interrupted else str(error).partition("\n")[0]
        self._comparison._store({}, partial=True, problem=problem)
        if interrupted:
            raise Interrupted(
                f"interrupted; {finished} of {len(ARMS)} servers were finished, and are kept in "
                f"{self._comparison.output}"
            ) from None


def _told(predicted: Predicted, result: TierResult, text: str) -> str:
    measured = result.metrics[DECISIVE]
    step = "" if predicted.step_ms is None else f", engine's step {predicted.step_ms:.4f}"
    low, high = measured.saved_low_ms, measured.saved_high_ms
    ends = "" if low is None or high is None else f" ({low:.4f} to {high:.4f})"
    return (
        f"Saved per token, ms: predicted host {predicted.host_ms:.4f}{step} "
        f"({predicted.where}); measured {measured.saved_ms:.4f}{ends}: {text}."
    )
