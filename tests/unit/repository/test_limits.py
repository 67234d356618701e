"""docs/limits.md has the numbers of the code, and each limit holds: what is at it is accepted, one past it refused."""

from __future__ import annotations

import asyncio
import importlib
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import httpx2
import numpy as np
import pytest
from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from aggregator.reports.packed_reports import read_reports as read_packed
from aggregator.reports.undeclared import UndeclaredNames
from alerting.config import AlertingFile
from collector.access import RATE_WINDOW_S, Access
from collector.batches import BeaconBatch, Seen
from collector.blocks import read_blocks, report_record, split_blocks
from collector.bodies import Bodies, demand_few_objects
from collector.emitters import BEACON_BYTES, Emitters
from collector.fairness import Workers
from collector.idempotency import Repeats
from collector.log_writer import RECORD_BYTES, RecordToWrite, Writer
from collector.metadata_cache import MetadataCache
from collector.models import as_batch, read_batch
from collector.spans.kafka import read_kafka_span
from collector.spans.otlp import SentSpan
from collector.task_runs import read_reports
from dashboard.access.policy import AccessFile
from dashboard.api import incidents, taps, windows
from dashboard.mcp import answers
from dashboard.mcp.arguments import Ranged
from dashboard.queries.series import bucket_s
from dashboard.reports.schedule.file import ReportsFile
from dashboard.request.shown_range import requested_range
from lagloss import Emitter, MemoryOutlet
from lagloss.broker.topics import topic_config
from lagloss.errors import LaglossError
from lagloss.sdk.account import Account
from lagloss.sdk.packing import BeaconReader, Extras, RefusedBeacons, TallyKey
from lagloss.wire.checks import check_content, check_report, window_problem
from lagloss.wire.format import (
    BadRecord,
    BeaconBlock,
    EmitterReport,
    OffsetRange,
    Progress,
    Tally,
    encode_report,
)
from lagloss.wire.sketch import Sketch
from lagloss_server.base.settings import Settings
from lagloss_server.base.yaml_files import load_documents
from lagloss_server.judging.facts import MissingId, WindowFacts
from lagloss_server.model.definition import Definition
from lagloss_server.model.taps import read_schema
from lagloss_server.model.time_range import TimeRange
from lagloss_server.net.http_answers import read_answer
from lagloss_server.net.problem_details import Problem
from lagloss_server.store import users
from taps.local_engine import LIMIT as LOCAL_LIMIT
from taps.plan import shared_out
from taps.spark_engine import LIMIT as SPARK_LIMIT
from tests.unit.repository.test_docs import exposed_metrics

ROOT: Final = Path(__file__).resolve().parents[3]
PAGE: Final = (ROOT / "docs/limits.md").read_text("utf-8")
LIMIT: Final = re.compile(r"(\d[\d,.]*) ?(?:([A-Za-z]+) )?[^()|]*\(\[`(\w+)`\]\(\.\./([\w/]+)\.py\)\)")
UNITS: Final = {
    "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "s": 1, "min": 60, "hours": 3_600, "days": 86_400
}  # fmt: skip


class Limit(NamedTuple):
    """A number of the page, with the constant that it is."""

    shown: float
    module: str
    constant: str

    @property
    def name(self) -> str:
        return f"{self.module}.{self.constant}"

    @property
    def value(self) -> float:
        value = getattr(importlib.import_module(self.module), self.constant)
        return float(value / 1_000 if self.constant.endswith("_MS") else value)


def limits() -> Iterator[Limit]:
    for number, unit, constant, path in LIMIT.findall(PAGE):
        yield Limit(float(number.replace(",", "")) * UNITS.get(unit, 1), path.replace("/", "."), constant)


LIMITS: Final = list(limits())


def test_every_link_to_a_constant_follows_its_number() -> None:
    assert len(LIMITS) == len(re.findall(r"\[`[A-Z_]+`\]\(\.\./", PAGE)) > 70


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.name)
def test_the_page_has_the_number_of_the_code(limit: Limit) -> None:
    if limit.constant == "DEFINITIONS_RATE":  # in KiB
        assert limit.value * 1024 == limit.shown
    elif limit.constant == "MAX_CONNECTIONS":  # fewer where the system allows fewer files
        assert limit.value <= limit.shown
    else:
        assert limit.value == limit.shown


def test_every_metric_of_the_page_is_exposed() -> None:
    assert set(re.findall(r"`(lagloss_\w+)`", PAGE)) <= exposed_metrics()


# -- at the limit, and past it -----------------------------------------------------------------------------------------

NOW_MS: Final = time.time_ns() // 1_000_000
START_S: Final = NOW_MS // 60_000 * 60
REFUSED: Final = (BadRecord, Problem, LaglossError, ValidationError, ValueError, OverflowError, httpx2.HTTPError)
REPORT: Final = EmitterReport("p", "n", uuid.UUID(int=1).bytes, "h", 1, NOW_MS, NOW_MS, False, START_S)
TALLY: Final = Tally("n.in", START_S, 1, 0, Sketch.from_bins({0: 1}))


def reported(**fields: Any) -> None:
    """Both readers of reports say the same."""
    report = replace(REPORT, **fields)
    (packed,) = read_packed([encode_report(report)])
    try:
        check_report(report)
    except BadRecord:
        assert isinstance(packed, BadRecord)
        raise
    assert not isinstance(packed, BadRecord)


def block(count: int) -> None:
    ids = np.zeros(count, np.uint64)
    lags = np.zeros(count, np.float32)
    check_content(BeaconBlock("p", "n.in", bytes(16), 1, START_S, 1, ids, lags))


def window(distance_ms: float) -> None:
    appended_ms = START_S * 1_000 - distance_ms
    problem = window_problem(START_S, int(appended_ms))
    if problem:
        raise ValueError(problem)


def definition(metadata: Any = None, name: str = "n", nodes: Any = None, **spec: Any) -> None:
    document = {"apiVersion": "lagloss/v1", "kind": "Pipeline", "metadata": {"name": "p", **(metadata or {})}}
    Definition.model_validate({**document, "spec": {"nodes": nodes or [{"name": name}], **spec}})


def chain(count: int) -> list[dict[str, Any]]:
    return [{"name": f"n{at}", "to": [f"n{at + 1}"] if at + 1 < count else []} for at in range(count)]


def many_nodes(count: int) -> None:
    """Of too many nodes at first their number is refused, in any case that of their checkpoints."""
    try:
        definition(nodes=chain(int(count)))
    except ValidationError as error:
        if "checkpoints" not in str(error):
            raise


def expression(length: float) -> None:
    tap = {"topic": "t", "id": f"$.{'x' * (int(length) - 2)}", "eventTime": "timestamp"}
    definition(nodes=[{"name": "n", "taps": {"out": tap}}])


def entries(count: float) -> None:
    places = [f"checkpoint=n{at // 4}.{('in', 'out', 'filtered', 'dead')[at % 4]}" for at in range(int(count))]
    definition(nodes=chain(30), alerts={"volume": [{"at": place} for place in places]})


def checkpoints(count: float) -> None:
    """Each node of a chain has four."""
    definition(nodes=chain(int(count) // 4))


def alerting(**more: Any) -> None:
    receivers = more.pop("receivers", [{"name": "w", "webhook": {"url": "https://example.com/"}}])
    AlertingFile.model_validate({"apiVersion": "lagloss/v1", "kind": "Alerting", "receivers": receivers, **more})


def receivers(count: float) -> None:
    alerting(receivers=[{"name": f"w{at}", "webhook": {"url": "https://example.com/"}} for at in range(int(count))])
    team = {"name": "t", "groups": [f"g{at}" for at in range(int(count))], "pipelines": ["team=a"]}
    AccessFile.model_validate({"apiVersion": "lagloss/v1", "kind": "Access", "teams": [team]})
    server = {"host": "mail.example.com", "from": "a@example.com"}
    report = {"pipelines": "all", "range": "last-week", "rrule": "FREQ=WEEKLY", "to": ["a@example.com"]}
    reports = [{**report, "name": f"r{at}"} for at in range(int(count))]
    ReportsFile.model_validate({"apiVersion": "lagloss/v1", "kind": "Reports", "mail": server, "reports": reports})


def matchers(count: float) -> None:
    match = [f"l{at}=x" for at in range(int(count))]
    alerting(routes=[{"to": ["w"], "match": match}])


def rule(length: float) -> None:
    text = "FREQ=DAILY;BYHOUR=2;BYMINUTE=0,"
    text += ",".join(["0"] * ((int(length) - len(text)) // 2)) + ",0"
    text = text.ljust(int(length), "0")
    maintenance = {"name": "m", "match": ["team=a"], "start": "2026-01-01T00:00", "duration": "1h", "reason": "r"}
    alerting(maintenance=[{**maintenance, "rrule": text[: int(length)]}])


def file_of(size: float) -> None:
    path = Path(_folder()) / "x.yaml"
    path.write_bytes(b"#" + b"x" * (int(size) - 1))
    load_documents(path)


def schema_of(size: float) -> None:
    path = Path(_folder()) / "x.avsc"
    path.write_bytes(b"x" * int(size))
    read_schema(path)


_folders: list[Path] = []


def _folder() -> Path:
    return _folders[-1]


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path) -> Iterator[None]:
    _folders.append(tmp_path)
    yield
    _folders.pop()


def body(max_bytes: float) -> Callable[[float], None]:
    def read(size: float) -> None:
        content = b"x" * int(size)

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": content, "more_body": False}

        async def go() -> None:
            request = Request({"type": "http", "method": "POST", "headers": []}, receive)
            async with Bodies().read(request, int(max_bytes), "p"):
                pass

        asyncio.run(go())

    return read


def keyed(length: float) -> None:
    async def respond() -> Response:
        return Response()

    async def go() -> None:
        answer: Callable[[], Awaitable[Response]] = respond
        await Repeats().answer("", "k" * int(length), b"", answer)

    asyncio.run(go())


def emitters(pipelines: int) -> Callable[[float], None]:
    declared = [f"p-{at}" for at in range(pipelines)]

    def report(count: float) -> None:
        names = UndeclaredNames(declared=frozenset(declared))
        for number in range(int(count)):
            if not names.admit_emitter(declared[number % pipelines]):
                raise ValueError("not followed")

    return report


def members(count: float) -> None:
    more = ", ".join(f'"m{at}": 0' for at in range(int(count) - 3))
    body = f'{{"pipeline": "p", "node": "n", "beacons": [], {more}}}'.encode()
    try:
        read_batch(body)
    except Problem as problem:
        if "members in an object" in str(problem):
            raise


def task_runs(count: float) -> None:
    run = '{"dag": "d", "run_id": "r", "due_at": 1795694400000, "run": {"state": "running", "at": 1795694400000}}'
    read_reports(f'{{"reports": [{", ".join([run] * int(count))}]}}'.encode())


def a_range(length_s: float) -> None:
    now_s = time.time() // 60 * 60
    requested_range({"from": str(int(now_s - length_s)), "to": "now"}, now_s)


def whole(kept: object, given: object) -> None:
    """Of a limit beyond which something is left out, and not refused."""
    if kept != given:
        raise ValueError(f"{given} were given, {kept} are left")


def waiting_bytes(size: float) -> None:
    """One pipeline has half of the room."""
    writer = Writer(MemoryOutlet, 10)
    try:
        asyncio.run(writer.put("p", [RecordToWrite("t", b"", bytes(int(size) // 2 - RECORD_BYTES))]))
    finally:
        writer.close(2)


def waiting_beacons(size: float) -> None:
    def make(pipeline: str, node: str, first: bool) -> Emitter:
        return Emitter(pipeline, node, outlet=MemoryOutlet, first=first, final=False, close_on_sigterm=False)

    async def go() -> None:
        served = Emitters(make, 10, Workers())
        try:
            seen = Seen("in", "m" * (int(size) // 2 - BEACON_BYTES), NOW_MS)
            await served.put(BeaconBatch("p", "n", False, [seen]))
        finally:
            await served.close()

    asyncio.run(go())


def written(size: float) -> None:
    """A report, and what would be a block if it were not all zeros."""
    padding = int(size) - len(encode_report(replace(REPORT, host="h" * 200_000))) + 200_000
    try:
        report_record(replace(REPORT, host="h" * padding))
    except Problem:
        with pytest.raises(Problem, match="bytes per block"):
            read_blocks([bytes(int(size))])
        raise
    with pytest.raises(Problem, match="a valid beacon block"):
        read_blocks([bytes(int(size))])


def message_id(size: float) -> None:
    beacon = f'{{"checkpoint": "in", "message_id": "{"m" * int(size)}", "event_time": {NOW_MS}}}'
    as_batch(read_batch(f'{{"pipeline": "p", "node": "n", "beacons": [{beacon}]}}'.encode()), None)


def definitions_rate(rate: float) -> None:
    asyncio.run(Access(MetadataCache(None)).charge_definition("p", int(rate) * RATE_WINDOW_S))


def span(topic: float = 1, service: float = 1, links: float = 0) -> None:
    attributes: dict[str, Any] = {"messaging.system": "kafka", "messaging.operation": "receive"}
    attributes |= {"messaging.destination.name": "t" * int(topic), "messaging.batch.message_count": 1}
    resource = {"service.name": "s" * int(service)}
    contexts = tuple(number.to_bytes(24, "big") for number in range(1, int(links) + 1))
    read_kafka_span(SentSpan(resource, "receive", attributes, start_ns=NOW_MS * 1_000_000, links=contexts))


def planned(limit: int) -> Callable[[float], None]:
    return lambda count: whole(sum(shared_out({0: int(count)}, limit).values()), count)


def missing_names(count: float) -> None:
    ids = tuple(MissingId(number, 1, 0.0, 0.0, 0.0, None) for number in range(int(count)))
    whole(len(WindowFacts.merged([WindowFacts(missing=ids), WindowFacts()]).missing), count)


def window_reasons(count: float) -> None:
    reasons = {"n.dead": {f"r{number}": 1 for number in range(int(count))}}
    whole(WindowFacts.unpack(WindowFacts(reasons=reasons).pack()).reasons, reasons)


def buffered(count: float) -> None:
    class Away(MemoryOutlet):
        def partitions(self) -> None:  # type: ignore[override]
            """Not known, so that nothing is packed."""

    emitter = Emitter("p", "n", outlet=Away, close_on_sigterm=False)
    try:
        whole(emitter.observe_all("received", ["m"] * int(count), np.full(int(count), NOW_MS)), count)
    finally:
        emitter.close(timeout_s=0)


def tallies(count: float) -> None:
    account = Account("n")
    for number in range(int(count)):
        account.drop(TallyKey("in", None, 60 * number), 1, 0.0)
    whole((len(account), account.blind), (count, False))


def sdk_reasons(*reasons: str) -> None:
    reader = BeaconReader(keep_ids=False)
    flat: list[Any] = []
    for reason in reasons:
        flat += ("dead", "m", NOW_MS, NOW_MS * 1_000_000, Extras(reason=reason))
    reader.read(flat, NOW_MS, RefusedBeacons())
    whole([kind.reason for kind in reader.kinds], [*reasons])


def password(length: float) -> None:
    users._hashed("x" * int(length))


def buckets(count: float) -> None:
    whole(bucket_s(TimeRange(0, int(count) * 60)), 60)


def parameter(router: Callable[..., APIRouter], path: str, name: str) -> Callable[[float], None]:
    """Try a parameter of the API's route with this path."""

    def tried(value: float) -> None:
        services: Any = SimpleNamespace(store=None, threads=SimpleNamespace(read=None), settings=Settings())
        (of_route,) = (
            route.dependant for route in router(services).routes if isinstance(route, APIRoute) and route.path == path
        )
        dependants = (of_route, *of_route.dependencies)
        (field,) = (field for part in dependants for field in part.query_params if field.name == name)
        _, errors = field.validate(int(value), {}, loc=())
        if errors:
            raise ValueError(errors)

    return tried


def tool_answer(size: float) -> None:
    """A text is in an answer twice."""
    around = answers._sent_bytes(answers.fitted(answers.Answer({"text": ""}), "")) + answers._ENVELOPE_BYTES
    answers.fitted(answers.Answer({"text": "x" * ((int(size) - around) // 2)}), "")


def tool_range(length_s: float) -> None:
    Ranged.parse({"from": str(int(time.time() - length_s)), "to": str(int(time.time()))}).time_range("")


@dataclass(frozen=True, slots=True)
class Case:
    """How to try a limit; `step`: one past it, in the unit of the page."""

    tried: Callable[[float], object]
    step: float = 1


HTTP: Final = "lagloss_server.net.http_server"
CASES: Final[dict[str, Case]] = {
    "lagloss.wire.format.MAX_NAME_BYTES": Case(lambda size: reported(host="h" * int(size))),
    "lagloss.wire.format.MAX_BLOCK_BEACONS": Case(lambda count: block(int(count))),
    "lagloss.wire.format.MAX_REPORT_PARTS": Case(lambda count: reported(tallies=(TALLY,) * int(count))),
    "lagloss.wire.format.MAX_COUNT": Case(lambda count: reported(tallies=(replace(TALLY, beacons=int(count)),)), 2),
    "lagloss.wire.format.MAX_LABELS": Case(lambda count: reported(labels={f"l{at}": "" for at in range(int(count))})),
    "lagloss.wire.format.MAX_LABEL_CHARS": Case(lambda size: reported(labels={"l": "x" * int(size)})),
    "lagloss.wire.format.MAX_AHEAD_MS": Case(lambda ahead_s: window(ahead_s * 1_000), 0.001),
    "lagloss.wire.format.RETENTION_MS": Case(lambda age_s: window(-age_s * 1_000), 0.001),
    "aggregator.reports.undeclared.EMITTERS_A_PIPELINE": Case(emitters(1)),
    "aggregator.reports.undeclared.EMITTERS_IN_ALL": Case(emitters(100)),
    "collector.bodies.MAX_BATCH_BYTES": Case(body(1024**2)),
    "collector.bodies.MAX_BLOCKS_BYTES": Case(body(4 * 1024**2)),
    "collector.bodies.MAX_DEFINITION_BYTES": Case(body(64 * 1024)),
    "collector.blocks.MAX_BLOCKS": Case(lambda count: split_blocks(b"\0\0\0\0" * int(count))),
    "collector.models.MAX_MEMBERS": Case(members),
    "collector.task_runs.MAX_REPORTS": Case(task_runs),
    "collector.idempotency.MAX_KEY_CHARS": Case(keyed),
    "lagloss_server.base.yaml_files.MAX_FILE_BYTES": Case(file_of),
    "lagloss_server.model.nodes.MAX_NODES": Case(lambda count: many_nodes(int(count))),
    "lagloss_server.model.definition.MAX_CHECKPOINTS": Case(checkpoints, 4),
    "lagloss_server.model.definition.MAX_JOBS": Case(
        lambda count: definition(jobs=[{"dag": f"d{at}"} for at in range(int(count))])
    ),
    "lagloss_server.model.alert_rules.MAX_ENTRIES": Case(entries),
    "lagloss_server.base.fields.MAX_DESCRIPTION": Case(lambda size: definition({"description": "x" * int(size)})),
    "lagloss_server.base.fields.MAX_DURATION_MS": Case(lambda size_s: definition(grace=f"{size_s:.0f}s")),
    "lagloss_server.model.expressions.MAX_LENGTH": Case(expression),
    "lagloss_server.model.taps.MAX_SCHEMA_BYTES": Case(schema_of),
    "lagloss_server.base.fields.MAX_LISTED": Case(receivers),
    "alerting.config.MAX_TO": Case(lambda count: alerting(routes=[{"to": ["w"] * int(count)}])),
    "lagloss_server.model.matchers.MAX_MATCHERS": Case(matchers),
    "lagloss_server.base.fields.MAX_RULE": Case(rule),
    "dashboard.request.shown_range.MAX_SPAN_S": Case(a_range, 60),
    "collector.bodies.MAX_OBJECTS": Case(lambda count: demand_few_objects(b"{" * int(count))),
    "collector.log_writer.MAX_RECORD_BYTES": Case(written),
    "collector.log_writer.MAX_WAITING_BYTES": Case(waiting_bytes, 2),
    "collector.emitters.MAX_WAITING_BYTES": Case(waiting_beacons, 2),
    "collector.access.DEFINITIONS_RATE": Case(definitions_rate),
    "collector.spans.kafka.MAX_LINKS": Case(lambda count: span(links=count)),
    "collector.spans.kafka.MAX_TOPIC": Case(lambda size: span(topic=size)),
    "collector.spans.kafka.MAX_SERVICE": Case(lambda size: span(service=size)),
    "lagloss.broker.topics.MAX_RECORD_BYTES": Case(  # which the broker enforces
        lambda size: whole(min(size, float(topic_config(1)["max.message.bytes"])), size)
    ),
    "lagloss.wire.format.MAX_ID_BYTES": Case(message_id),
    "lagloss_server.judging.facts.MAX_NAMES": Case(missing_names),
    "lagloss_server.judging.facts.MAX_REASONS": Case(window_reasons),
    "lagloss_server.net.http_answers.MAX_ANSWER_BYTES": Case(
        lambda size: read_answer(httpx2.Response(200, content=bytes(int(size))), float("inf"))
    ),
    "lagloss_server.store.users.MAX_PASSWORD_LENGTH": Case(password),
    "lagloss.sdk.account.MAX_TALLIES": Case(tallies),
    "lagloss.sdk.emitter.MAX_BUFFERED": Case(buffered),
    "lagloss.sdk.packing.MAX_REASONS": Case(lambda count: sdk_reasons(*map(str, range(int(count))))),
    "lagloss.sdk.packing.MAX_REASON_CHARS": Case(lambda size: sdk_reasons("x" * int(size))),
    "taps.local_engine.LIMIT": Case(planned(LOCAL_LIMIT)),
    "taps.spark_engine.LIMIT": Case(planned(SPARK_LIMIT)),
    "dashboard.queries.series.MAX_BUCKETS": Case(buckets),
    "dashboard.api.windows.MAX_ROWS": Case(parameter(windows.router, f"{windows.PATH}/matrix", "limit")),
    "dashboard.api.incidents.MAX_SIZE": Case(parameter(incidents.router, "/incidents", "size")),
    "dashboard.queries.incident_filters.MAX_PAGE": Case(parameter(incidents.router, "/incidents", "page")),
    "lagloss_server.incidents.lost_afterwards_store.MAX_NAMED": Case(
        parameter(taps.router, "/pipelines/{pipeline}/lost-afterwards", "limit")
    ),
    "dashboard.mcp.answers.MAX_BYTES": Case(tool_answer, 2),
    "dashboard.mcp.arguments.MAX_RANGE_S": Case(tool_range, 2),
}

ELSEWHERE: Final[dict[str, str]] = {
    f"{HTTP}.PROBE_CONNECTIONS": "test_a_service_that_is_only_busy_answers_probes",
    f"{HTTP}.BACKLOG": "test_few_connections_wait_to_be_accepted",
    f"{HTTP}.MAX_UNCOLLECTED_BYTES": "test_bodies_that_were_refused_are_not_kept",
    f"{HTTP}.COLLECT_S": "test_garbage_is_collected_once_a_second_at_most",
    f"{HTTP}.MAX_HEAD_BYTES": "test_a_head_has_16_kib_in_however_many_headers_it_comes",
    f"{HTTP}.HEAD_S": "test_who_begins_and_does_not_go_on_is_hung_up_on",
    f"{HTTP}.MAX_PIPELINED": "test_what_never_becomes_a_request_is_cut_off",
    f"{HTTP}.MAX_CONNECTIONS": "test_a_connection_without_a_request_makes_room_for_one_with",
    f"{HTTP}.MAX_BODY_BYTES": "test_a_body_has_one_mib_however_it_says_so",
    f"{HTTP}.BODY_S": "test_a_slow_body_is_waited_for_only_while_it_comes_fast_enough",
    f"{HTTP}.MIN_BODY_BYTES_PER_S": "test_a_slow_body_is_waited_for_only_while_it_comes_fast_enough",
    f"{HTTP}.MAX_HELD_BYTES": "test_bodies_of_many_requests_have_a_limit_together",
    f"{HTTP}.STALLED_S": "test_a_client_that_reads_no_answer_is_given_up",
    "collector.spans.otlp.MAX_SPANS": "test_a_request_has_so_many_spans_at_most",
    "collector.spans.pairing.MAX_MESSAGES": "test_messages_are_forgotten_of_the_topic_that_has_most",
    "collector.spans.pairing.MAX_WAITING": "test_spans_that_wait_are_bounded_and_end_to_wait",
    "collector.idempotency.MAX_KEPT_BYTES": (
        "test_answers_of_any_size_are_bounded_and_the_smallest_caller_keeps_its_share"
    ),
    "collector.fairness.TURN_S": "test_work_waits_for_its_turn_for_so_long_and_a_client_that_has_gone_has_none_done",
    "collector.runs.MAX_SPAN_S": "test_a_question_about_hours_has_so_many_and_is_charged_also_if_it_is_refused",
    "aggregator.quarantine.KEPT_AN_HOUR": (
        "test_1_500_bad_records_in_an_hour_are_counted_in_full_and_1_000_of_them_kept"
    ),
    "lagloss.sdk.spool.spool.MAX_BYTES": "test_a_spool_takes_what_memory_has_no_room_for_and_stops_at_its_size",
    "lagloss_server.net.schema_registry.TIMEOUT_S": "test_an_answer_has_so_many_bytes_at_most_and_so_much_time",
    "lagloss_server.net.http_answers.ANSWER_S": "test_an_answer_that_is_kept_has_so_much_time",
    "lagloss_server.net.iceberg_tables.MAX_CATALOG_BYTES": "test_answers_of_a_catalog_are_read_up_to_their_limit",
    "alerting.delivery.transports.http.MAX_ANSWER_BYTES": "test_of_a_refusal_as_much_is_read_as_its_limit",
    "alerting.delivery.transports.http.TIMEOUT_S": (
        "test_an_answer_that_drips_ends_at_the_limit_for_the_whole_sending"
    ),
    "lagloss_server.net.schema_registry.MAX_KNOWN_BYTES": "test_schemas_that_take_too_much_room_are_asked_for_again",
    "dashboard.login.local.PER_ADDRESS": "test_guesses_are_limited_by_address_and_by_name",
    "dashboard.login.local.PER_NAME": "test_guesses_are_limited_by_address_and_by_name",
    "dashboard.queries.window_cache.MAX_BEACONS": (
        "test_a_window_of_too_many_beacons_is_refused_before_the_log_is_opened"
    ),
    "dashboard.request.threads.MAX_LOCAL_WAITING": (
        "test_without_a_login_all_threads_are_used_and_there_are_so_many_requests_at_most"
    ),
    "collector.access.RATE_WINDOW_S": "test_no_token_gets_more_done_than_its_rate_allows",
    "collector.bodies.MAX_HELD_BYTES": "test_bodies_that_one_caller_has_read_have_a_limit_of_half_of_all",
    "collector.emitters.MAX_EMITTERS": "test_a_pipeline_of_many_nodes_makes_room_for_the_nodes_of_others",
    "collector.definitions.MAX_VERSIONS_A_DAY": (
        "test_a_pipeline_gets_so_many_versions_a_day_and_those_that_change_nothing_cost_none"
    ),
    "lagloss_server.store.store.MAX_VERSIONS": (
        "test_by_tokens_a_pipeline_gets_so_many_versions_at_most_and_an_operator_may_add_more"
    ),
    "taps.topic_reader.PIECE_BYTES": "test_no_more_than_a_piece_is_held_at_a_time",
    "taps.tables.postgres.MAX_TIES": (
        "test_a_transaction_of_more_rows_than_a_plan_takes_stops_the_tap_until_it_is_split"
    ),
    "taps.tables.reading.MAX_CHARS": ("test_of_a_text_as_much_is_read_as_shows_that_it_is_no_id_and_no_time"),
    "lagloss_server.net.parquet_folders.MAX_FILES": (
        "test_a_folder_has_so_many_files_at_most_and_others_of_its_objects_do_not_count"
    ),
    "taps.tables.row_groups.MAX_COLUMN_BYTES": "test_a_column_that_unpacks_to_more_than_its_limit_is_not_read",
    "aggregator.consumer_lag.watch.MAX_GROUPS": (
        "test_of_more_groups_than_a_round_reads_those_that_definitions_name_are_among_them"
    ),
    "lagloss_server.store.store.MAX_PIPELINES": "test_an_installation_has_so_many_pipelines_at_most",
    "lagloss_server.store.tokens.MAX_TOKENS": "test_a_pipeline_has_so_many_active_tokens_and_others_have_their_own",
    "lagloss_server.store.tokens.MAX_RATE": "test_a_rate_has_a_limit",
    "lagloss_server.store.users.MAX_USERS": "test_there_are_so_many_users_at_most",
    "lagloss_server.store.users.MAX_GROUPS": "test_there_are_so_many_users_at_most",
    "dashboard.login.sessions.MAX_SESSIONS": "test_a_person_has_so_many_sessions_and_the_oldest_ends",
    "lagloss_server.incidents.actions.MAX_SILENCES": "test_an_author_has_so_many_silences_and_others_have_their_own",
    "lagloss_server.incidents.actions.MAX_SILENCE_S": "test_what_a_silence_says_has_limits",
    "lagloss_server.incidents.actions.MAX_TEXT": "test_what_a_silence_says_has_limits",
    "lagloss_server.incidents.actions.MAX_AUTHOR": "test_what_a_silence_says_has_limits",
    "lagloss_server.model.matchers.MAX_MATCHER": "test_what_a_silence_says_has_limits",
    "lagloss_server.store.recompute_requests.MAX_WAITING": "test_so_many_recompute_requests_of_a_pipeline_wait_at_most",
    "dashboard.request.threads.MAX_WAITING": "test_a_user_waits_for_so_many_answers_and_others_are_answered",
}
"""Those that need a server, time, or more than a number to be tried, with the test that does."""


@pytest.mark.parametrize("name", CASES)
def test_what_is_at_the_limit_is_accepted_and_one_past_it_is_refused(name: str) -> None:
    (limit,) = {limit for limit in LIMITS if limit.name == name}
    case = CASES[name]
    case.tried(limit.value)
    with pytest.raises(REFUSED):
        case.tried(limit.value + case.step)


@pytest.mark.parametrize("field", ["progress", "ranges"])
def test_lanes_and_ranges_of_a_report_have_the_same_limit_as_its_tallies(field: str) -> None:
    def tried(count: int) -> None:
        if field == "progress":
            reported(progress=tuple(Progress("n.in", f"{at}", NOW_MS) for at in range(count)))
        else:
            ranges = tuple(OffsetRange(0, 2 * at, 2 * at) for at in range(count))
            reported(tallies=(replace(TALLY, ranges=ranges),))

    tried(1 << 16)
    with pytest.raises(BadRecord, match="up to 65536"):
        tried((1 << 16) + 1)


def test_limits_that_are_tried_elsewhere_name_a_test_that_is_there() -> None:
    texts = "\n".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__))
    names = set(re.findall(r"def (test_\w+)\(", texts))
    assert set(ELSEWHERE.values()) <= names
    assert not CASES.keys() & ELSEWHERE.keys()
    assert CASES.keys() | ELSEWHERE.keys() == {limit.name for limit in LIMITS}
