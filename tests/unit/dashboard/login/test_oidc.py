"""What an OpenID provider answers to the login has a limit, at each step."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from joserfc import jwt
from joserfc.jwk import RSAKey
from starlette.applications import Starlette
from structlog.testing import capture_logs

from dashboard.login.oidc import OidcLogin
from lagloss_server.base.settings import Settings
from lagloss_server.net.http_answers import MAX_ANSWER_BYTES
from tests.fakes.http_receiver import HttpReceiver, Reply, Request

STEPS = ("/.well-known/openid-configuration", "/keys", "/token")
TOO_LARGE = f"ReadError('expected up to {MAX_ANSWER_BYTES} bytes')"


class Provider(HttpReceiver):
    """Logs in a person who is in no group. Its answers have these `sizes`, unpacked, or are as short as they can be."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[str, int] = {}
        self.options: dict[str, Any] = {}
        self.nonce = ""
        self._key = RSAKey.generate_key(2048, {"kid": "test", "use": "sig", "alg": "RS256"})

    def answer(self, request: Request) -> Reply:
        match request.path:
            case "/keys":
                document: dict[str, Any] = {"keys": [self._key.as_dict(private=False)]}
            case "/token":
                now = int(time.time())
                claims = {"iss": self.url, "aud": "lagloss", "sub": "1", "iat": now, "exp": now + 60}
                token = jwt.encode({"alg": "RS256", "kid": "test"}, claims | {"nonce": self.nonce}, self._key)
                document = {"access_token": "a", "token_type": "Bearer", "id_token": token}
            case _:
                places = {"authorization_endpoint": "/authorize", "token_endpoint": "/token", "jwks_uri": "/keys"}
                document = {"issuer": self.url, **{name: self.url + path for name, path in places.items()}}
                document |= self.options
        body = json.dumps(document).encode()
        body += b" " * (self.sizes.get(request.path, 0) - len(body))
        return Reply(200, gzip.compress(body), {"content-type": "application/json", "content-encoding": "gzip"})


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider() as provider:
        yield provider


def log_in(provider: Provider) -> httpx2.Response:
    """The answer to the last request of a login."""
    settings = Settings(
        login="oidc",
        oidc_issuer=provider.url,
        oidc_client_id="lagloss",
        oidc_client_secret="s",
        dashboard_url="http://lagloss.example",
        login_viewers="staff",
    )
    login = OidcLogin(cast("Any", SimpleNamespace(settings=settings, store=None, threads=None)), cast("Any", None))

    async def asked() -> httpx2.Response:
        transport = httpx2.ASGITransport(Starlette(routes=login.routes))
        async with httpx2.AsyncClient(transport=transport, base_url="http://lagloss.example") as browser:
            start = await browser.get("/login/oidc")
            if start.status_code != 302:
                return start
            wanted = parse_qs(urlsplit(start.headers["location"]).query)
            provider.nonce = wanted["nonce"][0]
            return await browser.get("/login/oidc/callback", params={"code": "c", "state": wanted["state"][0]})

    return asyncio.run(asked())


def test_answers_of_a_provider_that_are_at_the_limit_are_read(provider: Provider) -> None:
    provider.sizes = dict.fromkeys(STEPS, MAX_ANSWER_BYTES)
    answer = log_in(provider)
    assert (answer.status_code, "1 is not in a group with access" in answer.text) == (403, True)
    assert {request.path for request in provider.requests} == {*STEPS}


@pytest.mark.parametrize("options", [{}, {"event_hooks": {}}], ids=["", "that says how it is to be asked"])
@pytest.mark.parametrize("step", STEPS)
def test_an_answer_of_a_provider_past_the_limit_ends_the_login_and_is_logged(
    provider: Provider, step: str, options: dict[str, Any]
) -> None:
    provider.sizes, provider.options = {step: MAX_ANSWER_BYTES + 1}, options
    with capture_logs() as logs:
        answer = log_in(provider)
    assert (answer.status_code, "the provider is unavailable" in answer.text) == (503, True)
    assert [(line["event"], line["error"]) for line in logs] == [("oidc_provider_failed", TOO_LARGE)]
