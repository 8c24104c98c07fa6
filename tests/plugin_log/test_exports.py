"""Logs as people get them: through a collector, exported from it, of several machines."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bench_prep.plugin_log.logs import read_logs
from bench_prep.plugin_log.usage import Usage, usage_in
from tests.plugin_log.logs import KEPT, counts

Record = tuple[datetime, str, str]
Write = Callable[[list[Record]], str]


def read(*files: Path) -> Usage:
    found = usage_in(read_logs(files))
    assert found is not None
    return found


def shares(found: Usage) -> tuple[int, int, int]:
    return found.processes, found.dispatched, found.decode_steps


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ray_nodes", (2, 1300, 1500)),
        ("compose_replicas", (2, 1300, 1500)),
        ("newest_first", (1, 300, 600)),
        ("cri_split_summary", (1, 198, 297)),
        ("cri_split_mark", (1, 198, 297)),
        ("ray_behind_engine_core", (2, 599, 599)),
        ("json_pretty", (1, 300, 600)),
        ("json_array_lines", (1, 300, 600)),
        ("json_array", (1, 300, 600)),
        ("csv", (1, 300, 600)),
        ("logfmt", (1, 300, 600)),
        ("rsyslog", (1, 300, 600)),
    ],
)
def test_logs_that_were_counted_wrong(name: str, expected: tuple[int, int, int]) -> None:
    found = read(KEPT / f"{name}.log")
    assert (shares(found), found.not_used, found.unread, found.mixed) == (expected, None, 0, False)


def of_two_hosts() -> list[Record]:
    """Two replicas with the same process identifiers: 300 of 400 and 50 of 200 steps; 3 processes.

    The first was restarted: 200 of 200 steps before.
    """
    records: list[Record] = []
    now = datetime(2026, 11, 30, 10, 0, tzinfo=UTC)

    def say(host: str, text: str) -> None:
        message = f"(Worker pid=15) INFO {now:%m-%d %H:%M:%S} [events.py:25] [bench-prep] {text}"
        records.append((now, host, message))

    def sums(host: str, dispatched: int, steps: int) -> None:
        say(host, f"summary: {dispatched} of {steps} decode steps by the fast path (x %)")
        say(host, json.dumps(counts(dispatched, steps)))

    say("gpu-1", "fast path not used: turned off by BENCH_PREP_FASTPATH")
    for index, (first, second) in enumerate([(20, 10), (200, 20), (0, 30), (100, 40), (300, 50)]):
        now += timedelta(minutes=1)
        if index in (0, 2):
            say("gpu-1", "fast path reserved: vLLM 0.32.0, A, B")
        if index == 0:
            say("gpu-2", 'fast path reserved: vLLM 0.32.0, "A", B')
        if first:
            sums("gpu-1", first, 200 if index < 2 else 400 * first // 300)
        sums("gpu-2", second, 4 * second)
    return records


def lines(write: Callable[[datetime, str, str], str]) -> Write:
    return lambda records: "".join(write(*record) + "\n" for record in records)


def table(names: list[str], row: Callable[..., list[object]], **format_: object) -> Write:
    def write(records: list[Record]) -> str:
        out = io.StringIO()
        writer = csv.writer(out, **format_)  # type: ignore[arg-type]
        writer.writerows([names, *(row(*record) for record in records)])
        return out.getvalue()

    return write


def by_host(records: list[Record]) -> dict[str, list[tuple[datetime, str]]]:
    hosts: dict[str, list[tuple[datetime, str]]] = {}
    for time, host, text in records:
        hosts.setdefault(host, []).append((time, text))
    return hosts


def nanoseconds(time: datetime) -> str:
    return f"{int(time.timestamp())}000000000"


EXPORTS: dict[str, Write] = {
    "compose": lines(lambda t, h, m: f"{h}  | {m}"),
    "compose with times": lines(lambda t, h, m: f"{h}  | {t:%FT%T}.123456789Z {m}"),
    "swarm": lines(lambda t, h, m: f"vllm.1.x7k2@{h}    | {m}"),
    "kubectl": lines(lambda t, h, m: f"[pod/{h}/vllm] {m}"),
    "stern": lines(lambda t, h, m: f"{h} vllm {m}"),
    "syslog": lines(lambda t, h, m: f"{t:%b %d %T} {h} vllm[812]: {m}"),
    "syslog RFC 5424": lines(lambda t, h, m: f"<14>1 {t:%FT%T}.1Z {h} vllm 812 - - {m}"),
    "journalctl iso": lines(lambda t, h, m: f"{t:%FT%T}+0000 {h} vllm[812]: {m}"),
    "journalctl with units": lines(lambda t, h, m: f"Mon {t:%F %T} UTC {h} vllm.service[812]: {m}"),
    "journald's export": lambda records: "\n".join(
        f"__CURSOR=s=x\n__REALTIME_TIMESTAMP={nanoseconds(t)[:16]}\nMESSAGE={m}\n_HOSTNAME={h}\n"
        for t, h, m in records
    ),
    "journald JSON with colours": lines(
        lambda t, h, m: json.dumps({"_HOSTNAME": h, "MESSAGE": list(f"\x1b[1m{m}".encode())})
    ),
    "aws logs tail": lines(lambda t, h, m: f"{t:%FT%T}.123000+00:00 {h} {m}"),
    "grep": lines(lambda t, h, m: f"logs/{h}.log:17:{m}"),
    "torchrun": lines(lambda t, h, m: f"[{h}:rank0]: {m}"),
    "honcho, coloured": lines(lambda t, h, m: f"\x1b[36m{t:%T} {h} | \x1b[0m{m}"),
    "vLLM's JSON in compose's": lines(
        lambda t, h, m: (
            f"{h}  | " + json.dumps({"process": 15, "message": m.partition("[events.py:25] ")[2]})
        )
    ),
    "splunk": lines(lambda t, h, m: json.dumps({"result": {"_raw": m, "host": h}})),
    "texts in an array": lambda records: json.dumps([f"{h} | {m}" for _, h, m in records]),
    "HTML": lines(lambda t, h, m: f"{h} | {m.replace(chr(34), '&quot;')}"),
    "mpirun": lines(lambda t, h, m: f"[1,{h[-1]}]<stdout>:{m}".replace(":(", ": (")),
    "srun": lines(lambda t, h, m: f"{h[-1]}: {m}"),
    "pdsh": lines(lambda t, h, m: f"{h}: {m}"),
    "logcli": lines(lambda t, h, m: f'{t:%FT%T}Z {{app="vllm", pod="{h}"}} {m}'),
    "ray": lines(lambda t, h, m: m.replace("pid=15)", f"pid=15, ip=10.0.0.{h[-1]})")),
    "docker with labels": lines(
        lambda t, h, m: json.dumps(
            {"log": m + "\n", "stream": "stdout", "attrs": {"container": h}, "time": f"{t:%FT%T}Z"}
        )
    ),
    "fluent-bit": lines(
        lambda t, h, m: json.dumps(
            {"date": t.timestamp(), "log": m, "kubernetes": {"pod_name": h, "labels": {"a": "b"}}}
        )
    ),
    "journald JSON": lines(
        lambda t, h, m: json.dumps(
            {"_HOSTNAME": h, "__REALTIME_TIMESTAMP": nanoseconds(t)[:16], "MESSAGE": m}
        )
    ),
    "vLLM's JSON in fluentd's": lines(
        lambda t, h, m: json.dumps(
            {
                "host": h,
                "message": json.dumps(
                    {
                        "asctime": f"{t:%F %T},123",
                        "process": 15,
                        "message": m.partition("[events.py:25] ")[2],
                    }
                ),
            }
        )
    ),
    "elastic, pretty": lambda records: json.dumps(
        {
            "hits": {
                "hits": [
                    {
                        "_id": f"x{index}",
                        "_source": {
                            "@timestamp": f"{t:%FT%T}.000Z",
                            "message": m,
                            "event": {"original": m},
                            "kubernetes": {"pod": {"name": h}},
                        },
                    }
                    for index, (t, h, m) in enumerate(records)
                ]
            }
        },
        indent=2,
    ),
    "loki": lambda records: json.dumps(
        {
            "status": "success",
            "data": {
                "result": [
                    {
                        "stream": {"app": "vllm", "pod": host},
                        "values": [[nanoseconds(t), m] for t, m in said],
                    }
                    for host, said in by_host(records).items()
                ]
            },
        }
    ),
    "grafana JSON": lambda records: json.dumps(
        [
            {"line": m, "timestamp": nanoseconds(t), "fields": {"instance": h}}
            for t, h, m in records
        ],
        indent=1,
    ),
    "cloudwatch": lambda records: json.dumps(
        {
            "events": [
                {"logStreamName": h, "timestamp": int(nanoseconds(t)[:13]), "message": m}
                for t, h, m in records
            ],
            "searchedLogStreams": [],
        },
        indent=4,
    ),
    "cloudwatch insights": lambda records: json.dumps(
        {
            "results": [
                [
                    {"field": "@timestamp", "value": f"{t:%F %T}.000"},
                    {"field": "@logStream", "value": h},
                    {"field": "@message", "value": m},
                ]
                for t, h, m in records
            ]
        }
    ),
    "GCP": lambda records: json.dumps(
        [
            {
                "insertId": f"{index}",
                "resource": {"labels": {"pod_name": h, "project_id": "p"}},
                "textPayload": m,
                "timestamp": f"{t:%FT%T}.123456Z",
            }
            for index, (t, h, m) in enumerate(records)
        ],
        indent=2,
    ),
    "OpenTelemetry": lines(
        lambda t, h, m: json.dumps(
            {
                "resourceLogs": [
                    {
                        "resource": {
                            "attributes": [{"key": "host.name", "value": {"stringValue": h}}]
                        },
                        "scopeLogs": [
                            {
                                "logRecords": [
                                    {"timeUnixNano": nanoseconds(t), "body": {"stringValue": m}}
                                ]
                            }
                        ],
                    }
                ]
            }
        )
    ),
    "datadog JSON": lines(
        lambda t, h, m: json.dumps(
            {"id": "x", "attributes": {"host": h, "timestamp": f"{t:%FT%T}Z", "message": m}}
        )
    ),
    "jq": lambda records: "\n".join(
        json.dumps({"host": h, "message": m}, indent=2) for _, h, m in records
    ),
    "datadog CSV": table(
        ["Date", "Host", "Service", "Message"],
        lambda t, h, m: [f"{t:%FT%T}Z", h, "vllm", m],
        quoting=csv.QUOTE_ALL,
    ),
    "kibana CSV": table(
        ["@timestamp", "message", "kubernetes.pod.name"],
        lambda t, h, m: [f"{t:%b %d, %Y @ %T.000}", m, h],
    ),
    "grafana CSV": table(
        ["labels", "Time", "Line", "tsNs", "id"],
        lambda t, h, m: [json.dumps({"pod": h}), f"{t:%F %T}.1", m, nanoseconds(t), "x"],
    ),
    "semicolons": table(["Time", "Pod", "Log"], lambda t, h, m: [t, h, m], delimiter=";"),
    "tabs": table(["time", "node", "log"], lambda t, h, m: [t, h, m], delimiter="\t"),
    "logfmt": lines(
        lambda t, h, m: f'ts={t:%FT%T}Z level=info host={h} msg={json.dumps(m)} caller="a b"'
    ),
    "rsyslog": lines(
        lambda t, h, m: (
            f"{t:%b %d %T} {h} vllm[812]: #033[36m" + m.replace(") ", ")#033[0m ", 1) + "#012"
        )
    ),
}


@pytest.mark.parametrize("newest_first", [False, True], ids=["oldest first", "newest first"])
@pytest.mark.parametrize("name", EXPORTS)
def test_replicas_with_equal_processes(tmp_path: Path, name: str, newest_first: bool) -> None:
    records = of_two_hosts()
    if newest_first:
        records.reverse()
    file = tmp_path / "export.log"
    file.write_text(EXPORTS[name](records))
    found = read(file)
    assert (found.unread, found.mixed, found.not_used) == (0, False, None)
    assert shares(found) == (3, 200 + 300 + 50, 200 + 400 + 200)


def test_replicas_in_files_of_their_own(tmp_path: Path) -> None:
    """Rotated, with equal process identifiers, and nothing in their lines tells them apart."""
    files = []
    for host, said in by_host(of_two_hosts()).items():
        middle = len(said) // 2
        for name, piece in ((f"{host}.log.1", said[:middle]), (f"{host}.log", said[middle:])):
            file = tmp_path / name
            file.write_text("".join(f"{m}\n" for _, m in piece))
            files.append(file)
    assert shares(read(*files)) == (3, 550, 800)
    assert not read(*files).mixed


def test_lines_that_a_terminal_wrapped(tmp_path: Path) -> None:
    file = tmp_path / "service.log"
    text = "\n".join(m for _, host, m in of_two_hosts() if host == "gpu-2")
    wrapped = [line[at : at + 80] for line in text.splitlines() for at in range(0, len(line), 80)]
    file.write_text("\n".join(wrapped))
    assert shares(read(file)) == (1, 50, 200)


def test_lines_that_docker_split(tmp_path: Path) -> None:
    file = tmp_path / "x-json.log"
    records = []
    for _, host, m in of_two_hosts():
        if host == "gpu-2":
            parts = [m[:70], m[70:] + "\n"]
            records += [json.dumps({"log": part, "stream": "stdout"}) for part in parts]
            records.insert(-1, json.dumps({"log": "x\n", "stream": "stderr"}))
    file.write_text(
        "".join(json.dumps(json.loads(each), separators=(",", ":")) + "\n" for each in records)
    )
    assert shares(read(file)) == (1, 50, 200)


def test_pages_of_an_export_newest_first(tmp_path: Path) -> None:
    """Each page is newest first, but the pages are in the order of time, and the other way."""
    said = [f"{host}  | {m}" for _, host, m in of_two_hosts()]
    pages = [said[at : at + 4] for at in range(0, len(said), 4)]
    file = tmp_path / "service.log"
    for each in ([page[::-1] for page in pages], pages[::-1]):
        file.write_text("\n".join(line for page in each for line in page))
        assert shares(read(file)) == (3, 550, 800)


@pytest.mark.parametrize(
    "prefix",
    [
        "2026-11-30 10:00:00,123 INFO vllm.bench_prep: ",
        "INFO:vllm.bench_prep:",
        "[2026-11-30 10:00:00,123: INFO/MainProcess] ",
        "2026-11-30 10:00:00.123 | INFO     | vllm.bench_prep:summary:42 - ",
        "gpu1 vllm[812]: ",
        "vllm-1  | ",
        "",
    ],
)
def test_formatters_of_the_user(tmp_path: Path, prefix: str) -> None:
    file = tmp_path / "service.log"
    file.write_text(
        f"{prefix}[bench-prep] fast path reserved: x\n"
        f"{prefix}[bench-prep] {json.dumps(counts(5, 9))}\n"
    )
    assert shares(read(file)) == (1, 5, 9)


def test_lines_that_ray_left_out(tmp_path: Path) -> None:
    file = tmp_path / "service.log"
    file.write_text(
        "(RayWorkerWrapper pid=15, ip=10.0.0.1) INFO 11-30 10:00:00 [events.py:25] [bench-prep] "
        f"{json.dumps(counts(5, 9))} [repeated 3x across cluster]\n"
    )
    assert read(file).mixed


def test_numbers_of_lines_are_no_replicas(tmp_path: Path) -> None:
    file = tmp_path / "service.log"
    said = [m for _, host, m in of_two_hosts() if host == "gpu-2"]
    for write in ("{:5d} {}", "{}:{}", "{:6d}\t{}"):
        file.write_text("\n".join(write.format(at, m) for at, m in enumerate(said)))
        assert shares(read(file)) == (1, 50, 200)


def test_two_first_dispatches_are_of_two_processes(tmp_path: Path) -> None:
    file = tmp_path / "service.log"
    first = "(W pid=15) INFO 11-30 10:00:0{} [events.py:25] [bench-prep] fast path dispatched for"
    for seconds, mixed in (("00", False), ("01", True)):
        file.write_text("".join(f"{first} the first time\n".format(each) for each in seconds))
        assert read(file).mixed is mixed
