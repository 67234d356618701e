"""Who may see the dashboard: the login, its sessions, and what keeps other sites out. See docs/login.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.types import ASGIApp

from dashboard.login.admission import Admission
from dashboard.login.checking import check_binding
from dashboard.login.guard import Guard
from dashboard.login.headers import SecureHeaders
from dashboard.login.kinds import LoginKind, NoLogin
from dashboard.login.local import LocalLogin
from dashboard.login.oidc import OidcLogin
from dashboard.login.proxy import ProxyLogin
from dashboard.login.sessions import is_https
from dashboard.queries.services import Services
from dashboard.request.current_user import Person
from lagloss_server.base.settings import Settings
from lagloss_server.model.roles import Role
from lagloss_server.net.origins import Origins

__all__ = ["SignedIn", "account", "check_binding", "protect"]


def protect(app: ASGIApp, services: Services, script_hashes: Sequence[str] = ()) -> ASGIApp:
    """Return the application to serve instead of `app`: with the login's pages, and headers on each answer.

    `script_hashes`: of the inline scripts that pages may run, as `sha256-…`. The server must not rewrite the client's
    address from headers (uvicorn: `proxy_headers=False`): the login does that, for proxies that are trusted.

    Raises:
        BadDefinition: the access file cannot be used.
    """
    settings = services.settings
    origins = Origins(settings.dashboard_url, loopback_only=not settings.login)
    headers = SecureHeaders(script_hashes, is_https=is_https(settings))
    admission = Admission(services)
    return Guard(app, _login(services, admission), admission, origins, headers)


@dataclass(frozen=True, slots=True)
class SignedIn:
    """The logged-in user as a page shows them. `can_log_out`: whether a POST to /logout means anything."""

    name: str
    role: Role
    can_log_out: bool


def account(person: Person, settings: Settings) -> SignedIn:
    return SignedIn(person.name, person.role, can_log_out=settings.login in ("local", "oidc"))


def _login(services: Services, admission: Admission) -> LoginKind:
    match services.settings.login:
        case "local":
            return LocalLogin(services, admission)
        case "oidc":
            return OidcLogin(services, admission)
        case "proxy":
            return ProxyLogin(services.settings)
        case _:
            return NoLogin()
