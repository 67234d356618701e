"""`lagloss mcp` as a process: an agent finds the lost message by tools alone, whatever else it asks."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import select

from lagloss.wire.format import hash_id
from lagloss_server.model.window import rfc3339
from lagloss_server.store.audit import audit_table
from lagloss_server.store.store import Store
from tests.support.agents import COMMAND, Agent, environment, on_stdio, run
from tests.support.teams_world import OURS, START_S, THEIRS, TeamsWorld, ids, seed
from tests.support.window_documents import clicks, document, store_window

HELLO = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
LOST = ids(OURS)[3]


@pytest.fixture(scope="module")
def world(module_database_url: str, kafka_bootstrap: str) -> Iterator[TeamsWorld]:
    store = Store(module_database_url)
    yield seed(store, kafka_bootstrap)
    store.close()


def call(request_id: int, tool: str, **arguments: Any) -> dict[str, Any]:
    return {
        "jsonrpc": "2.0",
        "id": request_id,
        "method": "tools/call",
        "params": {"name": tool, "arguments": arguments},
    }


def piped(database_url: str, *messages: dict[str, Any] | str) -> tuple[int, list[dict[str, Any]]]:
    """The exit code, and the answers on stdout, where these messages are all that there is on stdin."""
    lines = [message if isinstance(message, str) else json.dumps(message) for message in messages]
    done = subprocess.run(
        COMMAND,
        env=environment(database_url),
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(answer["jsonrpc"] == "2.0" for answer in answers)
    return done.returncode, answers


def test_the_end_of_input_ends_it_well(module_database_url: str) -> None:
    assert piped(module_database_url) == (0, [])


def test_what_was_asked_before_the_end_of_input_is_answered_and_nothing_else_is_on_stdout(
    module_database_url: str, world: TeamsWorld
) -> None:
    code, answers = piped(
        module_database_url,
        HELLO,
        INITIALIZED,
        "this is not JSON",
        call(1, "windows", pipeline=OURS, verdict="fine"),
        r'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"blame","arguments":{"pipeline":"\ud800"}}}',
        {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "windows", "arguments": [1]}},
        call(4, "report", pipeline=OURS),
        call(5, "list_pipelines"),
    )
    assert code == 0
    by_id = {answer["id"]: answer for answer in answers}
    assert {1, 3, 4, 5} <= by_id.keys()
    assert by_id[1]["result"]["isError"]
    assert "error" in by_id[3]
    assert by_id[4]["result"]["structuredContent"]["pipeline"]
    names = {row["pipeline"] for row in by_id[5]["result"]["structuredContent"]["pipelines"]}
    assert {OURS, THEIRS} <= names


def test_a_client_that_has_gone_ends_it_well(module_database_url: str) -> None:
    process = subprocess.Popen(
        COMMAND,
        env=environment(module_database_url),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.close()
    process.stdin.write(f"{json.dumps(HELLO)}\n")
    _, log = process.communicate(timeout=60)
    assert (process.returncode, log) == (0, "")


def test_without_a_database_it_says_so_and_exits_with_3() -> None:
    done = subprocess.run(
        COMMAND, env=environment("postgresql://127.0.0.1:1/none"), input="", capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert "127.0.0.1" in done.stderr


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_an_agent_finds_the_lost_message_its_place_and_its_way_by_tools_alone(
    module_database_url: str, kafka_bootstrap: str, world: TeamsWorld, mode: str
) -> None:
    async def investigate() -> None:
        async with on_stdio(module_database_url, kafka_bootstrap, mode) as agent:
            overview = await agent.document("list_pipelines")
            assert {row["pipeline"] for row in overview["pipelines"]} >= {OURS, THEIRS}
            windows = (await agent.document("windows", pipeline=OURS, verdict="loss"))["windows"]
            (window,) = windows
            assert (window["window_start"], window["lost"]) == (world.start, {"min": 1, "max": 1})
            (link,) = [link for link in window["links"] if link["lost"]["min"]]
            assert (link["from"], link["to"]) == ("src", "snk")
            blame = await agent.document("blame", pipeline=OURS, window=window["window_start"])
            (message,) = blame["messages"]
            assert (message["message_id"], message["kind"], message["places"]) == (LOST, "lost", ["link src->snk"])
            trace = await agent.document("trace_message", pipeline=OURS, message_id=message["message_id"])
            assert trace["missing_at"] == ["link src->snk"]
            assert [beacon["checkpoint"] for beacon in trace["trail"]["beacons"]] == ["src.in", "src.out"]
            incidents = await agent.document("incidents", pipeline=OURS)
            assert [row["id"] for row in incidents["open"]] == [str(world.incidents[OURS])]
            assert [row["pipeline"] for row in incidents["resolved"]] == [OURS]
            groups = await agent.document("groups", pipeline=OURS)
            assert [row["group"] for row in groups["groups"]] == ["plain-group"]
            report = await agent.document("report", pipeline=OURS, from_="-1d")
            assert report["whole"]["messages"] == 4

    run(investigate)


def test_windows_are_those_of_the_command_line(module_database_url: str, world: TeamsWorld) -> None:
    words = [*COMMAND[:-1], "windows", OURS, "--from", "-1h", "--json"]
    printed = subprocess.run(
        words, env=environment(module_database_url), stdout=subprocess.PIPE, text=True, check=True
    ).stdout

    async def ask() -> dict[str, Any]:
        async with on_stdio(module_database_url) as agent:
            return await agent.document("windows", pipeline=OURS, from_="-1h")

    assert run(ask)["windows"] == list(reversed(json.loads(printed)))


def test_an_answer_of_many_windows_has_the_newest_and_how_to_ask_for_the_others(
    store: Store, database_url: str
) -> None:
    store.apply(clicks())
    first_s = START_S - 200 * 60
    with store.engine.begin() as connection:
        for start_s in range(first_s, START_S, 60):
            lags = {"col-service.in": 5.0, "conn-ga.out": 100.0, "conn-fb.out": 200.0}
            store_window(connection, document(clicks(), start_s, lags_ms=lags), start_s, notify=False)

    async def ask(agent: Agent, to: str) -> dict[str, Any]:
        result = await agent.result("windows", pipeline="clicks", from_=rfc3339(first_s), to=to)
        assert len(result.model_dump_json(by_alias=True)) < 100_000
        return result.structured_content

    async def read_all() -> list[str]:
        starts: list[str] = []
        async with on_stdio(database_url) as agent:
            answer = await ask(agent, rfc3339(START_S))
            assert answer["left_out"] == [{"list": "windows", "count": 200 - len(answer["windows"])}]
            assert "`from`" in answer["narrow"]
            while True:
                starts += [window["window_start"] for window in answer["windows"]]
                if not answer["left_out"]:
                    return starts
                answer = await ask(agent, starts[-1])

    assert run(read_all) == [rfc3339(start_s) for start_s in range(START_S - 60, first_s - 60, -60)]


def test_errors_say_what_was_expected(module_database_url: str, world: TeamsWorld) -> None:
    async def ask() -> list[str]:
        async with on_stdio(module_database_url) as agent:
            return [
                await agent.error("windows", pipeline="nope"),
                await agent.error("windows", pipeline=OURS, from_="yesterday-ish"),
                await agent.error("windows", pipeline=OURS, from_="-2d"),
                await agent.error("incidents", from_="now", to="-1h"),
                await agent.error("blame", pipeline=OURS, window="-30d"),
                await agent.error("report", pipeline=OURS, to="now"),
            ]

    unknown, time_, span, order, window, report = run(ask)
    assert OURS in unknown
    assert "Expected a time" in time_
    assert "24 hours" in span
    assert "`from` before `to`" in order
    assert OURS in window
    assert "`from`" in report


def test_each_call_is_in_the_audit_trail_by_the_user_of_the_machine(store: Store, database_url: str) -> None:
    async def ask() -> None:
        async with on_stdio(database_url) as agent:
            await agent.document("groups")
            await agent.error("trace_message", pipeline="nope", message_id="secret-id")
            await agent.error("windows")

    run(ask)
    with store.engine.connect() as connection:
        rows = connection.execute(select(audit_table).order_by(audit_table.c.id)).all()
    assert {(row.action, row.known_by) for row in rows} == {("mcp.call", "command")}
    assert [(row.object, row.pipelines, row.detail) for row in rows] == [
        ("groups", [], {}),
        ("trace_message", ["nope"], {"id_hash": f"{hash_id('secret-id'):016x}"}),
        ("windows", [], {"problem": "Bad arguments. pipeline: expected a value, found none"}),
    ]
