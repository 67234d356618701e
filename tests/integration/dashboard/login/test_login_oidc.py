"""Login by an OpenID provider: a real one for tests, by HTTP, and one that forges what it signs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2
import pytest
import uvicorn
from fastapi import FastAPI
from joserfc import jwt
from joserfc.jwk import RSAKey
from joserfc.jws import JWSRegistry
from sqlalchemy import delete, select

from lagloss_server.ops.processes import choose_port
from lagloss_server.store import users
from lagloss_server.store.schema.core import table_of
from lagloss_server.store.schema.dashboard import SessionRow
from lagloss_server.store.store import Store
from tests.support.kafka_log import wait_for
from tests.support.login_world import NAVIGATION, browser_like, serving

PEOPLE = [
    {"sub": "1", "preferred_username": "olga", "groups": ["staff", "sre"]},
    {"sub": "2", "preferred_username": "vera", "groups": ["staff"]},
    {"sub": "3", "preferred_username": "eve", "groups": ["other"]},
    {"sub": "4", "groups": ["staff"]},
    {"sub": "5", "preferred_username": "bad\u202ename", "groups": ["staff"]},
]
_session = table_of(SessionRow)


def settings(issuer: str, **changed: str) -> dict[str, str]:
    return {
        "login": "oidc",
        "oidc_issuer": issuer,
        "oidc_client_id": "lagloss",
        "oidc_client_secret": "a secret of the client",
        "dashboard_url": "http://127.0.0.1:PORT",
        "login_operators": "sre",
        "login_viewers": "staff",
        **changed,
    }


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    """The provider, in a process of its own."""
    port = choose_port("the provider")
    people = [word for person in PEOPLE for word in ("--user-claims", json.dumps(person))]
    words = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "oidc_provider_mock",
        "--port",
        str(port),
        "--require-nonce",
        "true",
        *people,
    ]
    process = subprocess.Popen(words, env=dict(os.environ), stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    wait_for(lambda: _answers(f"{url}/.well-known/openid-configuration"), timeout_s=30, what="the provider")
    yield url
    process.terminate()
    process.wait(10)


@pytest.fixture(scope="module")
def store(module_database_url: str) -> Iterator[Store]:
    store = Store(module_database_url)
    yield store
    store.close()


@pytest.fixture(scope="module")
def url(store: Store, issuer: str) -> Iterator[str]:
    with serving(store, **settings(issuer)) as url:
        yield url


@pytest.fixture
def client(url: str, store: Store) -> Iterator[httpx2.Client]:
    with browser_like(url) as client:
        yield client
    with store.engine.begin() as connection:
        connection.execute(delete(_session))


def _answers(url: str) -> bool:
    try:
        return httpx2.get(url).is_success
    except httpx2.HTTPError:
        return False


def agree(start: httpx2.Response, sub: str) -> str:
    """What the provider sends the browser back to, once the person agreed."""
    answer = httpx2.post(start.headers["location"], data={"sub": sub})
    assert answer.status_code == 302, answer.text
    return answer.headers["location"]


def test_a_stranger_logs_in_by_the_provider_and_comes_to_where_they_wanted(client: httpx2.Client, store: Store) -> None:
    answer = client.get("/?pipeline=a", headers=NAVIGATION)
    assert answer.headers["location"] == "/login?next=%2F%3Fpipeline%3Da"
    assert 'href="/login/oidc?next=%2F%3Fpipeline%3Da"' in client.get(answer.headers["location"]).text
    start = client.get("/login/oidc?next=%2F%3Fpipeline%3Da")
    asked = parse_qs(urlsplit(start.headers["location"]).query)
    assert asked["redirect_uri"] == [f"{client.base_url}/login/oidc/callback".replace("//login", "/login")]
    assert asked["code_challenge_method"] == ["S256"]
    assert {"state", "nonce", "code_challenge"} <= set(asked)
    back = client.get(agree(start, "1"))
    assert (back.status_code, back.headers["location"]) == (303, "/?pipeline=a")
    assert client.get("/api/v1/who").json() == {"name": "olga", "role": "operator"}
    assert "lagloss_oidc" not in client.cookies
    with store.engine.connect() as connection:
        (row,) = connection.execute(select(_session)).all()
    assert (row.login, row.name, row.role) == ("oidc", "olga", "operator")


def test_groups_make_roles_and_who_is_in_none_is_refused(client: httpx2.Client) -> None:
    client.get(agree(client.get("/login/oidc"), "2"))
    assert client.get("/api/v1/who").json() == {"name": "vera", "role": "viewer"}
    client.post("/logout")
    refused = client.get(agree(client.get("/login/oidc"), "3"))
    assert (refused.status_code, "eve is not in a group" in refused.text) == (403, True)
    assert client.get("/api/v1/who").status_code == 401


def test_groups_of_the_claim_make_teams(store: Store, issuer: str, tmp_path: Path) -> None:
    teams = "[{name: staff, groups: [staff], pipelines: ['pipeline=~.+']}]"
    file = tmp_path / "access.yaml"
    file.write_text(f"{{apiVersion: lagloss/v1, kind: Access, teams: {teams}}}")
    with serving(store, **settings(issuer, login_viewers=""), access_file=file) as url, browser_like(url) as client:
        client.get(agree(client.get("/login/oidc"), "2"))
        assert client.get("/api/v1/who").json() == {"name": "vera", "role": "viewer"}
        assert client.get("/api/v1/sees").json() == []
        client.post("/logout")
        client.get(agree(client.get("/login/oidc"), "1"))
        assert client.get("/api/v1/sees").json() is None
        client.post("/logout")
        refused = client.get(agree(client.get("/login/oidc"), "3"))
        assert (refused.status_code, "eve is not in a team" in refused.text) == (403, True)


def test_a_person_without_a_name_is_known_by_their_subject_and_a_name_that_misleads_is_refused(
    client: httpx2.Client,
) -> None:
    client.get(agree(client.get("/login/oidc"), "4"))
    assert client.get("/api/v1/who").json() == {"name": "4", "role": "viewer"}
    assert client.get(agree(client.get("/login/oidc"), "5")).status_code == 403


def test_the_provider_is_told_the_configured_address_whatever_host_is_asked(url: str) -> None:
    start = httpx2.get(f"{url}/login/oidc", headers={"host": "evil.example"})
    assert parse_qs(urlsplit(start.headers["location"]).query)["redirect_uri"] == [f"{url}/login/oidc/callback"]


def test_a_login_that_another_browser_began_is_refused(client: httpx2.Client, url: str) -> None:
    back = agree(client.get("/login/oidc"), "1")
    with browser_like(url) as victim:
        assert victim.get(back).status_code == 403
        victim.get("/login/oidc")
        assert victim.get(back).status_code == 403
        assert "lagloss" not in victim.cookies


def test_a_code_works_once(client: httpx2.Client) -> None:
    back = agree(client.get("/login/oidc"), "1")
    attempt = client.cookies["lagloss_oidc"]
    assert client.get(back).status_code == 303
    client.post("/logout")
    assert client.get(back, headers={"cookie": f"lagloss_oidc={attempt}"}).status_code == 403


@pytest.mark.parametrize(
    "query", ["", "?state=x&code=y", "?error=access_denied&error_description=<script>", "?error=<script>"]
)
def test_an_answer_that_is_no_login_is_refused_in_words(client: httpx2.Client, query: str) -> None:
    client.get("/login/oidc")
    answer = client.get(f"/login/oidc/callback{query}")
    assert (answer.status_code, "try again" in answer.text) == (403, True)
    assert "<script>" not in answer.text
    assert ("access_denied" in answer.text) == ("access_denied" in query)


def test_an_attempt_that_was_changed_is_none(client: httpx2.Client) -> None:
    back = agree(client.get("/login/oidc"), "1")
    changed = client.cookies["lagloss_oidc"][:-3] + "abc"
    assert client.get(back, headers={"cookie": f"lagloss_oidc={changed}"}).status_code == 403


def test_whoever_logged_in_by_the_provider_can_be_logged_out(client: httpx2.Client, store: Store) -> None:
    client.get(agree(client.get("/login/oidc"), "1"))
    with store.engine.begin() as connection:
        assert users.end_sessions(connection, "olga") == 1
    deadline = time.monotonic() + 10
    while client.get("/api/v1/who").status_code == 200 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert client.get("/api/v1/who").status_code == 401


def test_a_provider_that_is_away_or_another_is_told(store: Store, issuer: str) -> None:
    for wrong in (f"http://127.0.0.1:{choose_port('nobody')}", f"{issuer}/"):
        with serving(store, **settings(wrong)) as url:
            answer = httpx2.get(f"{url}/login/oidc")
            assert (answer.status_code, "the provider is unavailable" in answer.text) == (503, True)


class Forger:
    """A provider whose ID tokens are what a test makes of them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.key = RSAKey.generate_key(2048, {"kid": "1"}, private=True)
        self.app = FastAPI(openapi_url=None)
        self.nonce = ""
        self.changed: dict[str, Any] = {}
        self.signed_by = self.key
        self.algorithm = "RS256"
        self.app.get("/.well-known/openid-configuration")(self.metadata)
        self.app.get("/jwks")(self.jwks)
        self.app.post("/token")(self.token)

    def metadata(self) -> dict[str, Any]:
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/jwks",
            "id_token_signing_alg_values_supported": ["RS256", "none", "HS256"],
        }

    def jwks(self) -> dict[str, Any]:
        return {"keys": [self.key.as_dict(private=False)]}

    def token(self) -> dict[str, Any]:
        now = int(time.time())
        claims = {"iss": self.url, "aud": "lagloss", "sub": "1", "iat": now, "exp": now + 60, "nonce": self.nonce}
        claims |= {"preferred_username": "olga", "groups": ["sre"]} | self.changed
        answer = {"access_token": "a", "token_type": "Bearer"}
        if self.algorithm == "":
            return answer
        header = {"alg": self.algorithm, "kid": "1"}
        registry = JWSRegistry(algorithms=["RS256", "none"])
        return answer | {"id_token": jwt.encode(header, claims, self.signed_by, registry=registry)}


@contextmanager
def forging() -> Iterator[Forger]:
    port = choose_port("the forger")
    forger = Forger(f"http://127.0.0.1:{port}")
    server = uvicorn.Server(uvicorn.Config(forger.app, port=port, log_level="critical", ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    wait_for(lambda: server.started, timeout_s=20, what="the forger")
    yield forger
    server.should_exit = True
    thread.join(20)


def try_with(client: httpx2.Client, forger: Forger) -> int:
    start = parse_qs(urlsplit(client.get("/login/oidc").headers["location"]).query)
    forger.nonce = start["nonce"][0]
    return client.get("/login/oidc/callback?" + urlencode({"code": "c", "state": start["state"][0]})).status_code


@pytest.mark.filterwarnings("ignore::joserfc.errors.SecurityWarning")
def test_an_id_token_that_is_forged_or_meant_for_another_logs_nobody_in(store: Store) -> None:
    now = int(time.time())
    changes: list[dict[str, Any]] = [
        {"iss": "https://evil.example"}, {"aud": "another client"}, {"nonce": "of another attempt"}, {"nonce": None},
        {"exp": now - 3_600}, {"iat": now + 3_600}, {"sub": None},
    ]  # fmt: skip
    with forging() as forger, serving(store, **settings(forger.url)) as url, browser_like(url) as client:
        assert try_with(client, forger) == 303
        for changed in changes:
            forger.changed = changed
            assert try_with(client, forger) == 403, changed
        forger.changed = {}
        forger.signed_by = RSAKey.generate_key(2048, {"kid": "1"}, private=True)
        assert try_with(client, forger) == 403
        forger.algorithm = "none"
        assert try_with(client, forger) == 403
        forger.algorithm = ""
        assert try_with(client, forger) == 403
