"""Teams over HTTP: by no route and no callback of the dashboard a member learns of another team's pipeline, or acts on
it. Every route and callback that there is has its calls here; what a member may see is seen by the same calls."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final
from uuid import UUID

import httpx2
import pytest
import schemathesis
from fastapi import FastAPI
from sqlalchemy import select
from starlette.routing import Mount
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from dashboard.queries.services import Services
from dashboard.web.server import create_server
from lagloss.wire.format import hash_id
from lagloss_server.base.settings import Settings
from lagloss_server.store.schema.core import Base
from lagloss_server.store.store import Store
from tests.support.dashboards import until
from tests.support.teams_world import (
    ABSENT,
    HUSHED,
    OURS,
    RECEIVER,
    SECRET,
    THEIRS,
    TeamsWorld,
    definition,
    ids,
    secrets_in,
    user,
    word,
)

ACTED_ON: Final = ("incident", "incident_change", "silence", "outbox", "recompute_request", "pipeline", "token")


def routes() -> set[str]:
    """Each route that the dashboard serves, as METHOD /path."""
    part: Any = create_server(Services(Store("postgresql://nowhere/none"), Settings()))
    while not isinstance(part, FastAPI):
        part = getattr(part, "_app", None) or part.app
    return set(_methods("", part.routes))


def _methods(prefix: str, found: Iterable[Any]) -> Iterator[str]:
    for route in found:
        if isinstance(route, Mount) and isinstance(route.app, FastAPI):
            yield from _methods(prefix + route.path, route.app.routes)
        elif hasattr(route, "original_router"):  # a router that was included
            yield from _methods(prefix, route.original_router.routes)
        else:
            yield from (f"{method} {prefix}{route.path}" for method in getattr(route, "methods", None) or {"ANY"})


OF_NO_PIPELINE: Final = {
    *("GET /livez", "GET /healthz", "GET /readyz", "GET /metrics", "GET /runbooks/{kind:path}"),
    *("GET /api/v1/openapi.json", "HEAD /api/v1/openapi.json"),
}
"""Routes whose answer is the same for everybody, and comes from no table."""
DASHS: Final = {
    *("GET /_dash-layout", "GET /_dash-dependencies", "POST /_dash-update-component", "GET /_reload-hash"),
    *("GET /_dash-component-suites/{package_name}/{fingerprinted_path:path}", "ANY /assets"),
    *("GET /_favicon.ico", "GET /"),
}
"""Dash's own: the frame, files, and the callbacks, which are tried one by one below."""
P: Final = "/api/v1/pipelines/{pipeline}"
READS: Final[dict[str, list[dict[str, Any]]]] = {
    f"GET {P}": [{}],
    f"GET {P}/panels": [{"range": "24h"}],
    f"GET {P}/consumer-lag": [{"range": "24h"}, {"range": "24h", "by": "partition"}],
    f"GET {P}/consumer-groups": [{"range": "24h"}],
    f"GET {P}/taps": [{}],
    f"GET {P}/lost-afterwards": [{"range": "24h"}],
    f"GET {P}/windows": [{"range": "24h"}],
    f"GET {P}/windows/{{start}}": [{}],
    f"GET {P}/windows/{{start}}/blame": [{}],
    f"GET {P}/windows/{{start}}/revisions": [{}],
    f"GET {P}/windows/{{start}}/matrix": [{}, {"format": "csv"}, {"only": "missing"}],
    f"GET {P}/windows/{{start}}/difference": [
        {"from": "src.in", "to": "snk.in"},
        {"from": "src.in", "to": "snk.in", "format": "csv"},
    ],
    f"GET {P}/windows/{{start}}/export": [{}, {"what": "lost", "format": "json"}, {"format": "parquet"}],
    f"GET {P}/openslo": [{}],
    f"GET {P}/runs": [{"range": "24h"}],
    f"GET {P}/run": [{}],
    f"GET {P}/messages": [{"id": "HASH"}],
    f"GET {P}/report": [{"range": "7d", "format": name} for name in ("json", "csv", "html", "md")],
}
"""Reads of one pipeline, each with its queries."""
LISTS: Final[dict[str, list[dict[str, Any]]]] = {
    "GET /api/v1/pipelines": [{}],
    "GET /api/v1/overview": [{}, {"q": "blue"}],
    "GET /api/v1/openslo": [{}, {"match": "team=~.*"}],
    "GET /api/v1/portfolio": [{"range": "24h"}, {"range": "24h", "match": "team=~.*", "format": "csv"}],
    "GET /api/v1/incidents": [{}, {"pipeline": THEIRS}, {"state": "resolved", "range": "24h"}],
    "GET /api/v1/deliveries": [{"range": "24h"}, {"range": "24h", "pipeline": THEIRS}],
    "GET /api/v1/silences": [{}],
    "GET /api/v1/receivers": [{}],
    "GET /api/v1/groups": [{}, {"match": "*"}],
    "GET /api/v1/coverage": [{}],
    "GET /api/v1/health": [{}],
    "GET /api/v1/audit": [{"range": "24h"}, {"range": "24h", "pipeline": THEIRS}],
}
"""Reads of what there is, which answer what the person who asks may see."""
OTHERS: Final = {
    "GET /api/v1/incidents/{incident_id}",
    "POST /api/v1/incidents/{incident_id}/acknowledge",
    "POST /api/v1/silences",
    "DELETE /api/v1/silences/{silence_id}",
    "POST /api/v1/receivers/{name}/test",
    "ANY /_dash-ws-callback",
    "ANY /mcp",
}
"""Tried by tests of their own."""


def test_every_route_of_the_dashboard_has_its_calls_here() -> None:
    assert routes() == {*OF_NO_PIPELINE, *DASHS, *READS, *LISTS, *OTHERS}


@pytest.fixture(scope="module")
def api(url: str) -> Any:
    """The read API as its OpenAPI document has it."""
    with user(url, "olga", "sre") as olga:
        return schemathesis.openapi.from_dict(olga.get("/api/v1/openapi.json").json())


@pytest.mark.parametrize("route", [*READS, *LISTS])
def test_each_response_is_as_its_route_declares_it(url: str, world: TeamsWorld, api: Any, route: str) -> None:
    method, _, path = route.partition(" /api/v1")
    with user(url, "olga", "sre") as olga:
        for query in {**READS, **LISTS}[route]:
            for pipeline in (OURS, ABSENT):
                api[path][method].validate_response(asked(olga, route, query, world, pipeline))


def asked(
    client: httpx2.Client, route: str, query: dict[str, Any], world: TeamsWorld, pipeline: str
) -> httpx2.Response:
    method, _, path = route.partition(" ")
    hashed = f"{hash_id(ids(THEIRS if pipeline == ABSENT else pipeline)[3]):016x}"
    params = {name: hashed if value == "HASH" else value for name, value in query.items()}
    return client.request(method, path.format(pipeline=pipeline, start=world.start), params=params)


@pytest.mark.parametrize("route", READS)
def test_a_read_of_another_teams_pipeline_is_answered_as_of_one_that_is_not_there(
    url: str, world: TeamsWorld, route: str
) -> None:
    with user(url, "rhea", "red-ops", "red") as rhea, user(url, "bill", "blue") as bill:
        for query in READS[route]:
            theirs, absent = (asked(rhea, route, query, world, name) for name in (THEIRS, ABSENT))
            assert (theirs.status_code, theirs.headers["content-type"]) == (404, "application/problem+json"), (
                theirs.text
            )
            assert theirs.text == absent.text.replace(ABSENT, THEIRS)
            assert secrets_in(theirs) == []
            own = asked(rhea, route, query, world, OURS)
            assert own.status_code == 200, own.text
            assert secrets_in(own) == []
            assert asked(bill, route, query, world, THEIRS).status_code == 200


def test_names_of_what_is_lost_afterwards_are_for_those_alone_who_may_see_them(url: str) -> None:
    route = f"/api/v1/pipelines/{OURS}/lost-afterwards?range=24h"
    with user(url, "rhea", "red") as viewer, user(url, "rolf", "red-ops") as operator:
        assert (viewer.get(route).json()["lost"], viewer.get(route).json()["messages"]) == (1, None)
        assert [message["message_id"] for message in operator.get(route).json()["messages"]] == [ids(OURS)[2]]


@pytest.mark.parametrize("route", LISTS)
def test_a_list_has_nothing_of_another_team(url: str, world: TeamsWorld, route: str) -> None:
    with user(url, "rhea", "red-ops") as rhea, user(url, "bill", "blue") as bill, user(url, "olga", "sre") as olga:
        bill.post(f"/api/v1/incidents/{world.incidents[THEIRS]}/acknowledge")  # is in the trail
        # coverage counts names by their prefix
        ours, theirs = (word(OURS), word(THEIRS)) if route.endswith("coverage") else (OURS, THEIRS)
        for query in LISTS[route]:
            answer = asked(rhea, route, query, world, OURS)
            assert answer.status_code == 200, answer.text
            assert secrets_in(answer) == []
            if not query.keys() & {"pipeline", "q"} and not route.endswith(("receivers", "silences")):
                assert ours in answer.text
            assert THEIRS not in answer.text
            assert theirs in asked(bill, route, query, world, OURS).text or route.endswith("receivers")
            whole = asked(olga, route, query, world, OURS).text
            assert theirs in whole or RECEIVER in whole


def test_coverage_by_label_has_the_values_of_the_teams_own_pipelines(url: str) -> None:
    with user(url, "rhea", "red-ops") as rhea:
        rows = rhea.get("/api/v1/coverage", params={"by": "label:team"}).json()["rows"]
    assert [row["value"] for row in rows] == ["red"]


def test_health_of_one_pipeline_is_asked_for_by_its_team_alone(url: str) -> None:
    with user(url, "rhea", "red-ops") as rhea, user(url, "bill", "blue") as bill:
        theirs, absent = (rhea.get("/api/v1/health", params={"pipeline": name}) for name in (THEIRS, ABSENT))
        assert theirs.status_code == absent.status_code == 404
        assert theirs.text == absent.text.replace(ABSENT, THEIRS)
        assert SECRET in bill.get("/api/v1/health", params={"pipeline": THEIRS}).text
        own = rhea.get("/api/v1/health", params={"pipeline": OURS}).json()
        assert (own["sizes"], own["bad_records"], own["alerting"]["receivers"]) == ([], [], None)
        assert own["alerting"]["host"] == "alerter-1"
        assert "no receiver" not in json.dumps(own["problems"])


def test_who_is_in_no_team_is_refused_and_who_is_an_operator_sees_all(url: str) -> None:
    with user(url, "nina", "staff") as nina:
        for path in ("/api/v1/pipelines", "/_dash-layout", "/"):
            answer = nina.get(path)
            assert (answer.status_code, "nina is not in a team with access" in answer.text) == (403, True)
        assert nina.get("/healthz").json() == {"status": "ok"}
    with user(url, "olga", "sre") as olga:
        assert [each["name"] for each in olga.get("/api/v1/pipelines").json()] == sorted((OURS, THEIRS, HUSHED))
    with user(url, "ada", "red", "blue") as ada:
        assert len(ada.get("/api/v1/pipelines").json()) == 3


# acts


def state_of(store: Store) -> dict[str, list[Any]]:
    with store.engine.connect() as connection:
        return {
            name: sorted(map(str, connection.execute(select(Base.metadata.tables[name])).all())) for name in ACTED_ON
        }


def test_a_team_acts_on_nothing_of_another(url: str, world: TeamsWorld) -> None:
    before = state_of(world.store)
    theirs, silence = world.incidents[THEIRS], world.silences["theirs"]
    body = {"matchers": [f"pipeline={THEIRS}"], "duration": "1h", "reason": "x"}
    acts = {
        f"/api/v1/incidents/{theirs}": "GET",
        f"/api/v1/incidents/{theirs}/acknowledge": "POST",
        f"/api/v1/silences/{silence}": "DELETE",
    }
    with user(url, "rhea", "red-ops") as rhea:
        for path, method in acts.items():
            answer = rhea.request(method, path)
            nowhere = rhea.request(method, path.replace(str(theirs), str(UUID(int=0))).replace(silence, "0123abcd"))
            assert answer.status_code == nowhere.status_code == 404, answer.text
            assert answer.json()["title"] == nowhere.json()["title"]
            assert secrets_in(answer) == []
        answer = rhea.post("/api/v1/silences", json=body)
        other = rhea.post("/api/v1/silences", json={**body, "matchers": [f"pipeline={ABSENT}"]})
        assert (answer.status_code, answer.text) == (422, other.text.replace(ABSENT, THEIRS))
        of_all = rhea.delete(f"/api/v1/silences/{world.silences['of all']}")
        assert (of_all.status_code, secrets_in(of_all)) == (403, [])
        for receiver in (RECEIVER, "no-such"):
            assert rhea.post(f"/api/v1/receivers/{receiver}/test").status_code == 403
    with user(url, "rob", "red") as rob:
        assert rob.post(f"/api/v1/incidents/{world.incidents[OURS]}/acknowledge").status_code == 403
        assert rob.post(f"/api/v1/incidents/{theirs}/acknowledge").status_code == 403
        assert rob.post("/api/v1/silences", json={**body, "matchers": [f"pipeline={OURS}"]}).status_code == 403
        assert rob.get("/api/v1/audit").status_code == 403
    assert state_of(world.store) == before


def test_a_silence_of_a_team_silences_no_incident_of_others(url: str, world: TeamsWorld) -> None:
    body = {"matchers": ["severity=critical"], "duration": "1h", "reason": "maintenance"}
    with user(url, "rhea", "red-ops") as rhea, user(url, "olga", "sre") as olga:
        made = rhea.post("/api/v1/silences", json=body).json()
        assert made["matchers"] == ["severity=critical", f"pipeline=~{OURS}"]
        assert made["open_incidents"] == [str(world.incidents[OURS])]
        shown = {each["pipeline"]: each["silence"] for each in olga.get("/api/v1/incidents").json()["incidents"]}
        assert shown[OURS]["id"] == made["id"]
        assert (shown[THEIRS], shown[HUSHED]) == (None, None)
        listed = {each["id"]: each for each in rhea.get("/api/v1/silences").json()["silences"]}
        assert set(listed) == {made["id"], world.silences["of all"]}
        assert listed[world.silences["of all"]]["matchers"] == ["pipelines of your teams and of other teams"]
        with user(url, "bill", "blue") as bill:
            assert bill.delete(f"/api/v1/silences/{made['id']}").status_code == 404
        assert rhea.delete(f"/api/v1/silences/{made['id']}").status_code == 204


def test_a_team_takes_its_own_incident_and_the_trail_says_so_to_those_who_may_know(url: str, world: TeamsWorld) -> None:
    own = world.incidents[OURS]
    with user(url, "rhea", "red-ops") as rhea, user(url, "bill", "blue") as bill, user(url, "olga", "sre") as olga:
        taken = rhea.post(f"/api/v1/incidents/{own}/acknowledge", json={"note": "mine"})
        assert (taken.status_code, taken.json()["acknowledged_by"]) == (200, "rhea")
        query = {"range": "1h", "action": "incident.acknowledge", "actor": "RHEA"}
        [entry] = rhea.get("/api/v1/audit", params=query).json()["entries"]
        assert (entry["actor"], entry["known_by"], entry["address"]) == ("rhea", "proxy", "127.0.0.1")
        assert (entry["object"], entry["pipelines"]) == (str(own), [OURS])
        assert olga.get("/api/v1/audit", params=query).json()["entries"] == [entry]
        assert bill.get("/api/v1/audit", params=query).json() == {"entries": [], "page": 1, "total": 0}


# message ids


def names_in(text: str) -> list[str]:
    """Names and hashes of messages of the team's own pipeline."""
    hashes = [f"{hash_id(name):016x}" for name in ids(OURS)]
    return [name for name in (*ids(OURS), *hashes) if name in text]


def test_message_ids_are_shown_to_those_who_may_see_them_and_to_no_other(url: str, world: TeamsWorld) -> None:
    window = f"/api/v1/pipelines/{OURS}/windows/{world.start}"
    points = {"from": "src.in", "to": "snk.in"}
    calls: list[tuple[str, dict[str, str]]] = [
        (f"{window}/matrix", {}),
        (f"{window}/matrix", {"format": "csv"}),
        (f"{window}/difference", points),
        (f"{window}/difference", {**points, "format": "csv"}),
        (f"{window}/export", {"what": "lost"}),
        (f"{window}/export", {"what": "all", "format": "json"}),
        (f"/api/v1/pipelines/{OURS}/messages", {"id": ids(OURS)[3]}),
        (f"/api/v1/pipelines/{OURS}/messages", {"id": f"{hash_id(ids(OURS)[0]):016x}"}),
    ]
    incident = f"/api/v1/incidents/{world.incidents[OURS]}"
    with user(url, "rob", "red") as rob, user(url, "rhea", "red-ops") as rhea:
        for path, query in calls:
            hidden = rob.get(path, params=query)
            assert (hidden.status_code, hidden.json()["title"]) == (403, "Message ids are hidden"), hidden.text
            assert names_in(hidden.text) == []
            assert names_in(rhea.get(path, params=query).text), path
        assert rob.get(incident).json()["examples"] == []
        assert names_in(rob.get(incident).text) == []
        assert names_in(rhea.get(incident).text)
        for route in (*READS, *LISTS):
            if not route.endswith(("/matrix", "/difference", "/export", "/messages", "/audit")):
                for query in (READS | LISTS)[route]:
                    assert names_in(asked(rob, route, query, world, OURS).text) == [], route


def test_looks_at_ids_are_in_the_trail_once_whatever_is_looked_at_again(url: str, world: TeamsWorld) -> None:
    window = f"/api/v1/pipelines/{OURS}/windows/{world.start}"
    with user(url, "ruth", "red-ops") as ruth, user(url, "rob", "red") as rob:
        for _ in range(2):
            ruth.get(f"{window}/matrix")
            ruth.get(f"{window}/matrix", params={"format": "csv"})
            ruth.get(f"/api/v1/pipelines/{OURS}/messages", params={"id": ids(OURS)[0]})
            ruth.get(f"/api/v1/incidents/{world.incidents[OURS]}")
            rob.get(f"{window}/matrix")
        entries = ruth.get("/api/v1/audit", params={"range": "1h", "actor": "ruth"}).json()["entries"]
        assert [(entry["action"], entry["object"]) for entry in reversed(entries)] == [
            ("ids.window", world.start),
            ("ids.export", world.start),
            ("ids.search", f"{hash_id(ids(OURS)[0]):016x}"),
            ("ids.incident", str(world.incidents[OURS])),
        ]
        assert ruth.get("/api/v1/audit", params={"range": "1h", "actor": "rob"}).json()["total"] == 0
    with user(url, "olga", "sre") as olga:
        assert olga.get("/api/v1/audit", params={"range": "1h", "actor": "ruth"}).json()["total"] == 4


# callbacks


def addresses(world: TeamsWorld, pipeline: str) -> list[tuple[str, str]]:
    """Path and query of every page, about a pipeline where it can be."""
    of, start, incident = f"/pipelines/{pipeline}", world.start, world.incidents[pipeline]
    tabs = ("firing", "pending", "silenced", "history", "deliveries", "silences", "backtest")
    return [
        ("/", ""),
        ("/", "?q=blue"),
        ("/portfolio", "?range=24h"),
        ("/portfolio", "?range=24h&match=team%3Dblue"),
        (of, "?range=24h"),
        (f"{of}/windows/{start}", "?a=src.in&b=snk.in"),
        (f"{of}/messages", f"?id={hash_id(ids(pipeline)[3]):016x}"),
        (f"{of}/messages", ""),
        ("/messages", ""),
        (f"{of}/report", "?range=7d"),
        (f"{of}/runs", "?range=24h"),
        (f"{of}/runs", f"?run={word(pipeline)}-run"),
        *(("/alerts", f"?range=24h&tab={tab}") for tab in tabs),
        ("/alerts", f"?range=24h&tab=firing&pipeline={pipeline}"),
        ("/alerts", f"?do=end-silence&of={world.silences['theirs' if pipeline == THEIRS else 'of all']}"),
        (f"/incidents/{incident}", ""),
        (f"/incidents/{incident}", "?do=acknowledge"),
        (f"/incidents/{incident}", "?do=silence"),
        (f"/incidents/{incident}", "?do=repair"),
        ("/health", ""),
        ("/health", f"?pipeline={pipeline}"),
        ("/audit", "?range=24h"),
    ]


class Callbacks:
    """Every callback that the server answers, asked as a browser asks, or anybody who knows how."""

    def __init__(self, client: httpx2.Client, world: TeamsWorld) -> None:
        self.client, self.world = client, world
        dependencies = client.get("/_dash-dependencies").json()
        self.all = [each for each in dependencies if not each.get("clientside_function")]

    def ask(self, callback: dict[str, Any], path: str, search: str, pipeline: str) -> httpx2.Response:
        return self.client.post("/_dash-update-component", json=self.body(callback, path, search, pipeline))

    def body(self, callback: dict[str, Any], path: str, search: str, pipeline: str) -> dict[str, Any]:
        values = self.values(path, search, pipeline)
        given = [
            [{**each, "value": values.get(f"{each['id']}.{each['property']}")} for each in callback[part]]
            for part in ("inputs", "state")
        ]
        output = callback["output"]
        several = output.startswith("..")
        outputs = [
            dict(zip(("id", "property"), part.rsplit(".", 1), strict=True)) for part in output.strip(".").split("...")
        ]
        return {
            "output": output,
            "outputs": outputs if several else outputs[0],
            "inputs": given[0],
            "state": given[1],
            "changedPropIds": [f"{each['id']}.{each['property']}" for each in given[0][:1]],
        }

    def values(self, path: str, search: str, pipeline: str) -> dict[str, Any]:
        stamp = [pipeline, self.world.start_s, 1, "closed"]
        typed = {"name": "x", "note": "x", "matchers": f"pipeline={pipeline}", "duration": "3600", "reason": "x"}
        forms = {f"{do}-{name}.value": text for do in ("acknowledge", "silence") for name, text in typed.items()}
        return {
            "url.pathname": path,
            "url.search": search,
            "tick.n_intervals": 1,
            "scheme.data": "light",
            "pipeline.data": [OURS, THEIRS, HUSHED],
            "window-stamp.data": stamp,
            "end-silence-name.value": "x",
            "repair-name.value": "x",
            "repair-place.value": "link:src->snk",
            "repair-count.value": "1",
            "test-receiver.value": "some-hook",
            "backtest-pipeline.value": pipeline,
            **{
                f"{name}.n_clicks": 1
                for name in ("acknowledge-it", "silence-it", "end-silence-it", "test-it", "repair-it")
            },
            **{f"{name}.n_clicks": 1 for name in ("backtest-it", "window-again", "message-search", "report-apply")},
            **forms,
        }

    def sweep(self, pipeline: str) -> Iterator[tuple[str, httpx2.Response]]:
        for path, search in addresses(self.world, pipeline):
            for callback in self.all:
                yield f"{callback['output']} at {path}{search}", self.ask(callback, path, search, pipeline)


READERS: Final = {
    *(
        "overview-rows-drawn.data",
        "portfolio-content.children",
        "pipeline-incidents.children",
        "window-matrix.children",
        "window-difference.children",
    ),
    *("message-listing-drawn.data", "messages-content-drawn.data"),
    *("message-found.children", "report-content.children", "alerts-content.children", "incident-content.children"),
    *(
        "health-sections-drawn.data",
        "audit-content.children",
        "runs-content.children",
        "pipeline.data",
        "alerts-pipeline.data",
        "silence-subject.children",
    ),
}
"""What callbacks fill with what they read; by each of them a member of the team blue learns something."""


@pytest.mark.slow
def test_no_callback_tells_a_member_of_another_teams_pipeline_or_acts_on_it(url: str, world: TeamsWorld) -> None:
    before = state_of(world.store)
    with user(url, "rhea", "red-ops") as rhea:
        told = {}
        for where, answer in Callbacks(rhea, world).sweep(THEIRS):
            assert answer.status_code in (200, 204), f"{where}: {answer.status_code} {answer.text}"
            if found := secrets_in(answer):
                told[where] = found
        # a link leads on from the address that was asked for
        known = ("backtest-pipeline.data", "url.href@")
        assert {where: found for where, found in told.items() if not any(each in where for each in known)} == {}
    assert state_of(world.store) == before
    learned: set[str] = set()
    with user(url, "bill", "blue") as bill:
        callbacks = Callbacks(bill, world)
        for path, search in addresses(world, THEIRS):
            for callback in callbacks.all:
                if not callback["output"].endswith(("-it.disabled", "act-done.data")) and "act-told" not in str(
                    callback
                ):
                    answer = callbacks.ask(callback, path, search, THEIRS)
                    if secrets_in(answer):
                        learned |= {name for name in READERS if name in callback["output"]}
    assert learned == READERS


@pytest.mark.slow
def test_no_callback_shows_a_name_of_a_message_to_whom_they_are_hidden_from(url: str, world: TeamsWorld) -> None:
    def swept(client: httpx2.Client) -> list[str]:
        asked_for = f"{hash_id(ids(OURS)[3]):016x}"  # in the address of the message's page
        found = Callbacks(client, world).sweep(OURS)
        return [where for where, answer in found if names_in(answer.text.replace(asked_for, ""))]

    with user(url, "rob", "red") as rob:
        assert swept(rob) == []
    with user(url, "rhea", "red-ops") as rhea:
        shown = " ".join(swept(rhea))
        for name in ("window-matrix", "window-difference", "message-found", "messages-content", "incident-content"):
            assert name in shown


def test_no_callback_is_answered_over_a_websocket(url: str, world: TeamsWorld) -> None:
    with user(url, "rhea", "red-ops") as rhea:
        callbacks = Callbacks(rhea, world)
        [rows] = [each for each in callbacks.all if "overview-rows-drawn.data" in each["output"]]
        payload = callbacks.body(rows, "/", "", OURS)
        headers = {name: rhea.headers[name] for name in ("x-forwarded-user", "x-forwarded-groups", "origin")}
        with connect(
            url.replace("http", "ws") + "/_dash-ws-callback", additional_headers=headers, proxy=None
        ) as socket:
            socket.send(json.dumps({"type": "callback_request", "requestId": "1", "payload": payload}))
            with pytest.raises(ConnectionClosed):
                pytest.fail(str(socket.recv(10)))


def test_an_answer_that_another_person_found_is_not_had_by_its_number(url: str, world: TeamsWorld) -> None:
    asked_for = f"{hash_id(ids(THEIRS)[3]):016x}"
    with user(url, "bill", "blue") as bill, user(url, "rhea", "red-ops") as rhea:
        for client, is_theirs in ((bill, True), (rhea, False)):
            callbacks = Callbacks(client, world)
            [find] = [each for each in callbacks.all if "message-found.children" in each["output"]]
            path, search = f"/pipelines/{THEIRS}/messages", f"?id={asked_for}"
            if is_theirs:
                found = callbacks.ask(find, path, search, THEIRS).json()["response"]
                number = found["message-answer"]["data"]
            values = callbacks.values(path, search, THEIRS) | {"message-answer.data": number}
            callbacks.values = lambda *_, known=values: known  # type: ignore[method-assign]
            assert (SECRET in callbacks.ask(find, path, search, THEIRS).text) is is_theirs


def test_a_pipeline_is_seen_soon_after_its_label_says_so(url: str, world: TeamsWorld) -> None:
    text = definition(OURS).model_copy(
        update={"metadata": definition(OURS).metadata.model_copy(update={"name": "new"})}
    )
    world.store.apply(text)
    with user(url, "rhea", "red-ops") as rhea:
        until(
            lambda: "new" in [each["name"] for each in rhea.get("/api/v1/pipelines").json()], "the pipeline to be seen"
        )
    world.store.delete("new")
