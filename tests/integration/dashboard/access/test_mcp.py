"""Agents at the dashboard: they see what their user may see, over the same login, and each call is in the trail."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from lagloss.wire.format import hash_id
from tests.support.agents import Agent, on_http, run
from tests.support.teams_world import ABSENT, HUSHED, OURS, SECRET, THEIRS, TeamsWorld, ids, known_as, secrets_in, user

LOST = ids(OURS)[3]
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
JSON = {"accept": "application/json, text/event-stream"}


def calls(start: str, pipeline: str, message_id: str) -> list[tuple[str, dict[str, Any]]]:
    """A call of each tool about a pipeline."""
    return [
        ("windows", {"pipeline": pipeline}),
        ("incidents", {"pipeline": pipeline}),
        ("blame", {"pipeline": pipeline, "window": start}),
        ("trace_message", {"pipeline": pipeline, "message_id": message_id}),
        ("groups", {"pipeline": pipeline}),
        ("report", {"pipeline": pipeline, "from_": "-1d"}),
    ]


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_a_member_sees_the_pipelines_of_their_team_by_every_tool(url: str, world: TeamsWorld, mode: str) -> None:
    async def ask() -> list[Any]:
        async with on_http(url, known_as("rhea", "red-ops"), mode) as rhea:
            listed = [await rhea.document(name) for name in ("list_pipelines", "incidents", "groups")]
            return [*listed, *[await rhea.document(name, **given) for name, given in calls(world.start, OURS, LOST)]]

    documents = run(ask)
    assert [row["pipeline"] for row in documents[0]["pipelines"]] == [OURS]
    text = str(documents)
    assert LOST in text
    assert (SECRET in text, THEIRS in text, HUSHED in text) == (False, False, False)


def test_a_pipeline_of_another_team_is_answered_as_one_that_is_not_there(url: str, world: TeamsWorld) -> None:
    async def ask(agent: Agent, pipeline: str) -> list[str]:
        message_id = ids(THEIRS)[3]
        return [await agent.error(name, **given) for name, given in calls(world.start, pipeline, message_id)]

    async def compare() -> None:
        async with on_http(url, known_as("rhea", "red-ops")) as rhea, on_http(url, known_as("bill", "blue")) as bill:
            theirs, absent = await ask(rhea, THEIRS), await ask(rhea, ABSENT)
            assert theirs == [text.replace(ABSENT, THEIRS) for text in absent]
            assert not any(SECRET in text or HUSHED in text for text in theirs)
            for name, given in calls(world.start, THEIRS, ids(THEIRS)[3]):
                await bill.document(name, **given)

    run(compare)


def test_hidden_ids_stay_hidden_in_every_tool_and_in_the_trail(url: str, world: TeamsWorld) -> None:
    async def ask() -> list[Any]:
        async with on_http(url, known_as("rob", "red")) as rob:
            answers = []
            for name, given in calls(world.start, OURS, LOST):
                if name != "trace_message":
                    answers.append(await rob.document(name, **given))
            refused = await rob.error("trace_message", pipeline=OURS, message_id=LOST)
            assert "rob is not allowed to see message ids" in refused
            return answers

    documents = run(ask)
    assert LOST not in str(documents)
    assert f"{hash_id(LOST):016x}" not in str(documents)
    (blame,) = [document for document in documents if "ids_hidden" in document]
    assert (blame["ids_hidden"], blame["messages"]) == (True, [])
    with user(url, "olga", "sre") as olga:
        trail = olga.get("/api/v1/audit", params={"range": "1h", "actor": "rob", "action": "mcp.call"})
    assert trail.json()["total"] == 6
    assert LOST not in trail.text
    assert f"{hash_id(LOST):016x}" not in trail.text


def test_each_call_is_in_the_trail_with_its_arguments_and_the_message_by_its_hash(url: str, world: TeamsWorld) -> None:
    async def ask() -> None:
        async with on_http(url, known_as("rita", "red-ops")) as rita:
            await rita.document("windows", pipeline=OURS, from_="-30m")
            await rita.document("trace_message", pipeline=OURS, message_id=LOST)
            await rita.error("blame", pipeline=OURS)

    run(ask)
    with user(url, "olga", "sre") as olga:
        entries = olga.get("/api/v1/audit", params={"range": "1h", "actor": "rita"}).json()["entries"]
    assert [(entry["object"], entry["detail"]) for entry in reversed(entries) if entry["action"] == "mcp.call"] == [
        ("windows", {"from": "-30m"}),
        ("trace_message", {"id_hash": f"{hash_id(LOST):016x}"}),
        ("blame", {"problem": "Bad arguments. window: expected a value, found none"}),
    ]
    assert {(entry["known_by"], entry["address"]) for entry in entries} == {("proxy", "127.0.0.1")}
    assert ("ids.search", f"{hash_id(LOST):016x}") in {(entry["action"], entry["object"]) for entry in entries}


def test_who_is_not_logged_in_or_in_no_team_is_refused(url: str) -> None:
    assert httpx2.post(f"{url}/mcp", json=PING, headers=JSON).status_code == 401
    with user(url, "nina", "staff") as nina:
        refused = nina.post("/mcp", json=PING, headers=JSON)
        assert (refused.status_code, secrets_in(refused)) == (403, [])


def test_pages_of_other_sites_other_methods_and_large_bodies_are_refused(url: str) -> None:
    with user(url, "rhea", "red-ops") as rhea:
        assert rhea.post("/mcp", json=PING, headers=JSON).json() == {"jsonrpc": "2.0", "id": 1, "result": {}}
        assert rhea.post("/mcp", json=PING, headers={**JSON, "origin": "https://evil.example"}).status_code == 403
        for method in ("GET", "DELETE", "PUT"):
            refused = rhea.request(method, "/mcp", headers=JSON)
            assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
        assert rhea.post("/mcp", content=b" " * 2_000_000, headers=JSON).status_code == 413
        bad = rhea.post("/mcp", content=b"{", headers={**JSON, "content-type": "application/json"})
        assert (bad.status_code, bad.json()["error"]["code"]) == (400, -32700)
