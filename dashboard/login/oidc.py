"""Login by an OpenID provider: authorization code flow with PKCE, state and nonce."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

import structlog
from authlib.integrations.httpx_client import AsyncOAuth2Client
from authlib.integrations.starlette_client import OAuth, OAuthError, StarletteOAuth2App
from httpx2 import HTTPError
from itsdangerous import BadSignature, URLSafeTimedSerializer
from joserfc.errors import JoseError
from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from dashboard.login.admission import Admission
from dashboard.login.groups import GroupRoles, claimed
from dashboard.login.kinds import LOGIN_PATH, LOGOUT_PATH, unauthorised
from dashboard.login.next_path import checked_next
from dashboard.login.pages import provider_page
from dashboard.login.sessions import Lifetime, SessionCookie, Sessions, cookie_name, is_https
from dashboard.queries.services import Services
from dashboard.request.current_user import Person
from lagloss_server.base.settings import Settings
from lagloss_server.net.http_answers import keep_answer_async
from lagloss_server.net.origins import origin_of
from lagloss_server.net.problem_details import Problem

OIDC_LOGIN: Final = "oidc"
START_PATH: Final = "/login/oidc"
CALLBACK_PATH: Final = "/login/oidc/callback"
TIMEOUT_S: Final = 10.0
SCOPE: Final = "openid profile email"
_METADATA: Final = "/.well-known/openid-configuration"
_ALGORITHMS: Final = frozenset(
    {"RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512", "EdDSA", "Ed25519"}
)
"""Signatures that only the provider can make. A provider may list `none`, too, which needs no key."""
_SUPPORTED: Final = "id_token_signing_alg_values_supported"
_ATTEMPT_S: Final = 600
"""How long a login may take at the provider."""
_MAX_NAME_LENGTH: Final = 255
_ERROR_CODE: Final = re.compile(r"[a-z_]{1,40}")
_log = structlog.get_logger("lagloss.dashboard")


class OidcLogin:
    """The provider knows people and their groups."""

    def __init__(self, services: Services, admission: Admission) -> None:
        settings = services.settings
        self._admission = admission
        self._store = services.store
        self._settings = settings
        self._sessions = Sessions(services.store, OIDC_LOGIN, Lifetime.of(settings))
        self._cookie = SessionCookie(services, self._sessions)
        self._attempts = _Attempts(settings)
        self._client = make_client(settings)
        # the configured address, never the Host that a request names: the provider sends the code there
        self._redirect_uri = origin_of(settings.dashboard_url) + CALLBACK_PATH

    @property
    def routes(self) -> Sequence[Route]:
        return (
            Route(LOGIN_PATH, self._show, methods=["GET"]),
            Route(START_PATH, self._start, methods=["GET"]),
            Route(CALLBACK_PATH, self._come_back, methods=["GET"]),
            Route(LOGOUT_PATH, self._log_out, methods=["POST"]),
        )

    async def person(self, connection: HTTPConnection) -> Person | None:
        return await self._cookie.person(connection)

    def unauthorised(self, connection: HTTPConnection) -> Problem:
        return unauthorised(f"log in at {LOGIN_PATH}", "Session")

    async def _show(self, request: Request) -> Response:
        return _page(checked_next(request.query_params.get("next", "")))

    async def _start(self, request: Request) -> Response:
        """Send the browser to the provider, and gives it what it has to bring back."""
        next_path = checked_next(request.query_params.get("next", ""))
        attempt: dict[str, Any] = {"next": next_path}
        request.scope["session"] = attempt
        try:
            await trusted_metadata(self._client, self._settings)
            response: Response = await self._client.authorize_redirect(request, self._redirect_uri)
        except (ProviderError, HTTPError, ValueError) as error:
            return _page(next_path, _unreachable(error))
        self._attempts.keep(response, attempt)
        return response

    async def _come_back(self, request: Request) -> Response:
        """Asks the provider who the code that the browser brings stands for."""
        attempt = self._attempts.read(request)
        next_path = checked_next(str(attempt.get("next", "")))
        request.scope["session"] = attempt
        try:
            await trusted_metadata(self._client, self._settings)
            person = self._person(await self._claims(request))
        except Problem as problem:
            response: Response = _page(next_path, problem)
        except (ProviderError, HTTPError) as error:
            response = _page(next_path, _unreachable(error))
        except (OAuthError, JoseError, ValueError) as error:
            response = _page(next_path, _refused(error))
        else:
            token = await asyncio.to_thread(self._begin, person)
            response = RedirectResponse(next_path, 303)
            await self._cookie.hand_out(request, response, token)
        self._attempts.forget(response)
        return response

    async def _claims(self, request: Request) -> dict[str, Any]:
        """Return the claims of the ID token, its signature, issuer, audience, times and nonce found right."""
        expected = {
            "iss": {"essential": True, "value": self._settings.oidc_issuer},
            "aud": {"essential": True, "value": self._settings.oidc_client_id},
        }
        answer = await self._client.authorize_access_token(request, claims_options=expected)
        claims: dict[str, Any] | None = answer.get("userinfo")
        if claims is None:
            raise ValueError("the provider's answer has no ID token")
        return claims

    def _person(self, claims: dict[str, Any]) -> Person:
        name = claims.get(self._settings.oidc_name_claim) or claims["sub"]
        if not isinstance(name, str) or len(name) > _MAX_NAME_LENGTH or not name.isprintable():
            detail = f"expected a printable name in the claim {self._settings.oidc_name_claim}"
            raise Problem(403, "Bad name", detail)
        groups = claimed(claims, self._settings.oidc_role_claim)
        role = GroupRoles.of(self._settings).role(groups)
        if role is None:
            raise Problem(403, "Not allowed", f"{name} is not in a group with access. Ask an operator.")
        person = Person(name, role, groups)
        self._admission.teams_of(person)
        return person

    def _begin(self, person: Person) -> str:
        with self._store.engine.begin() as connection:
            return self._sessions.begin(connection, person)

    async def _log_out(self, request: Request) -> Response:
        response = RedirectResponse(LOGIN_PATH, 303)
        await self._cookie.take_back(request, response)
        return response


class _Attempts:
    """Cookie that a browser keeps while it is at the provider: state, nonce and PKCE's verifier, signed. Any dashboard
    with the same settings can read it."""

    def __init__(self, settings: Settings) -> None:
        self._name = cookie_name("lagloss_oidc", settings)
        self._secure = is_https(settings)
        self._signer = URLSafeTimedSerializer(settings.oidc_client_secret, salt="lagloss login attempt")

    def keep(self, response: Response, attempt: dict[str, Any]) -> None:
        text = self._signer.dumps(attempt)
        # lax: the browser comes back from another site
        response.set_cookie(self._name, text, _ATTEMPT_S, path="/", secure=self._secure, httponly=True, samesite="lax")

    def read(self, request: Request) -> dict[str, Any]:
        """Return the attempt; empty if there is none, or it is too old."""
        try:
            attempt = self._signer.loads(request.cookies.get(self._name, ""), max_age=_ATTEMPT_S)
        except BadSignature:
            return {}
        return attempt if isinstance(attempt, dict) else {}

    def forget(self, response: Response) -> None:
        response.delete_cookie(self._name, path="/", secure=self._secure, httponly=True, samesite="lax")


def _page(next_path: str, problem: Problem | None = None) -> Response:
    return provider_page(f"{START_PATH}?next={quote(next_path, safe='')}", problem)


def _unreachable(error: Exception) -> Problem:
    _log.error("oidc_provider_failed", error=repr(error))
    return Problem(503, "Temporarily unavailable", "the provider is unavailable; see the dashboard's log")


def _refused(error: Exception) -> Problem:
    """Answer a callback that is no login: refused, begun in another browser, or forged."""
    _log.warning("login_failed", error=repr(error))
    code = error.error if isinstance(error, OAuthError) else None
    summary = f" ({code})" if isinstance(code, str) and _ERROR_CODE.fullmatch(code) else ""
    return Problem(403, "Not logged in", f"the provider's answer could not be used{summary}; try again")


class ProviderError(Exception):
    """The provider is not the one that the settings name, or cannot sign as it has to."""


class _BoundedClient(AsyncOAuth2Client):  # type: ignore[misc]  # without types
    """Sends requests to the provider, whose answers have a limit. It is set here, since authlib takes options of a
    client from the provider's metadata, too."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.event_hooks = {"response": [keep_answer_async]}


class _BoundedApp(StarletteOAuth2App):  # type: ignore[misc]  # without types
    client_cls = _BoundedClient


def make_client(settings: Settings) -> Any:
    """Return the client; it asks the provider for nothing yet."""
    return OAuth().register(
        "lagloss",
        client_cls=_BoundedApp,
        client_id=settings.oidc_client_id,
        client_secret=settings.oidc_client_secret,
        server_metadata_url=settings.oidc_issuer.rstrip("/") + _METADATA,
        client_kwargs={"scope": SCOPE, "code_challenge_method": "S256", "timeout": TIMEOUT_S},
    )


async def trusted_metadata(client: Any, settings: Settings) -> None:
    """Fetch the provider's metadata if they are not there, and leaves in them only signatures to be trusted.

    Raises:
        ProviderError: they are another issuer's (OpenID Connect Discovery 1.0, 4.3), or no signature is left.
        HTTPError, ValueError: they cannot be had.
    """
    metadata: dict[str, Any] = await client.load_server_metadata()
    if metadata.get("issuer") != settings.oidc_issuer:
        issuer = metadata.get("issuer")
        client.server_metadata.clear()  # else it would not be asked again
        raise ProviderError(f"expected issuer {settings.oidc_issuer} (LAGLOSS_OIDC_ISSUER), found {issuer}")
    offered = metadata.get(_SUPPORTED) or ["RS256"]
    metadata[_SUPPORTED] = [name for name in offered if name in _ALGORITHMS]
    if not metadata[_SUPPORTED]:
        raise ProviderError(f"expected ID tokens signed by one of {sorted(_ALGORITHMS)}, found {offered}")
