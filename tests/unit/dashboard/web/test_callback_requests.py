"""Requests for callbacks that no page makes are refused, before anything is run."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from dash import Input, Output, State, html
from fastapi import FastAPI
from httpx2 import Response
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from dashboard.web.index import Index

BODY = {
    "output": "..b.title...b.children..",
    "outputs": [{"id": "b", "property": "title"}, {"id": "b", "property": "children"}],
    "inputs": [{"id": "a", "property": "children", "value": "x"}],
    "state": [{"id": "a", "property": "title"}],
    "changedPropIds": ["a.children"],
}
NO_CALLBACK: tuple[Any, ...] = ({}, [], 3, None, "b.children", {**BODY, "output": "b.title"}, {**BODY, "output": []})


@pytest.fixture(scope="module")
def ask() -> Callable[..., Response]:
    """Ask a dashboard of two components."""
    server = FastAPI()
    app = Index("dashboard", server=server)  # type: ignore[arg-type]
    app.layout = html.Div([html.Div(id="a"), html.Div(id="b")])

    @app.callback(Output("b", "title"), Output("b", "children"), Input("a", "children"), State("a", "title"))
    def titled(value: str, title: str | None) -> tuple[str, str]:
        return f"{value} {title}", "text"

    @app.callback(Output("b", "children", allow_duplicate=True), Input("b", "title"), prevent_initial_call=True)
    def told(title: str | None) -> str:
        return f"titled {title}"

    app._setup_server()  # type: ignore[no-untyped-call]
    client = TestClient(server, raise_server_exceptions=False)

    def asked(content: bytes, kind: str = "application/json") -> Response:
        return client.post("/_dash-update-component", content=content, headers={"content-type": kind})

    asked.outputs = [*app.callback_map]  # type: ignore[attr-defined]
    return asked


def test_what_a_page_asks_is_answered(ask: Callable[..., Response]) -> None:
    answer = ask(json.dumps(BODY).encode())
    assert answer.json()["response"] == {"b": {"title": "x None", "children": "text"}}
    (output,) = (output for output in ask.outputs if "@" in output)  # type: ignore[attr-defined]
    _, _, prop = output.rpartition(".")
    body = {"output": output, "outputs": {"id": "b", "property": prop}, "inputs": [{"id": "b", "property": "title"}]}
    assert ask(json.dumps(body).encode()).json()["response"] == {"b": {"children": "titled None"}}


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 50_000, *(json.dumps(b).encode() for b in NO_CALLBACK)])
def test_what_is_no_callback_is_refused(ask: Callable[..., Response], content: bytes) -> None:
    assert ask(content).status_code == 400
    assert ask(content, "text/plain").status_code == 400


anything = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["id", "property", "x"]), inner),
    max_leaves=5,
)


@given(name=st.sampled_from([*BODY]), value=anything)
def test_a_changed_request_is_refused(ask: Callable[..., Response], name: str, value: Any) -> None:
    answer = ask(json.dumps({**BODY, name: value}).encode())
    assert answer.status_code == 400 or (name == "changedPropIds" and answer.status_code == 200)
