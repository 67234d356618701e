"""Origins: requests that other sites' pages make are refused."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from lagloss_server.net.clients import is_loopback
from lagloss_server.net.problem_details import Problem

_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def origin_of(url: str) -> str:
    """Return the origin of a URL as browsers write it; empty if it has none."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return ""
    if not host or parts.scheme not in _DEFAULT_PORTS:
        return ""
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}" + ("" if port in (None, _DEFAULT_PORTS[parts.scheme]) else f":{port}")


def is_navigation(connection: HTTPConnection) -> bool:
    """Return whether a person follows a link or types an address, rather than a page or a script asking for
    something."""
    headers = connection.headers
    if connection.scope["type"] != "http" or connection.scope["method"] not in ("GET", "HEAD"):
        return False
    if "sec-fetch-mode" in headers:
        return headers["sec-fetch-mode"] == "navigate" and headers.get("sec-fetch-dest", "document") == "document"
    return "text/html" in headers.get("accept", "")


def is_browser(headers: Headers) -> bool:
    """Return whether a request carries what browsers add by themselves, such as cookies."""
    return any(name in headers for name in ("origin", "cookie", "sec-fetch-site", "sec-fetch-mode"))


class Origins:
    """The rules, for a service at `own_url`, whose address the setting `setting` gives.

    With `loopback_only`, only names of this machine are answered, or that URL's: a page of a name that its owner points
    to 127.0.0.1 (DNS rebinding) has an origin of its own.
    """

    def __init__(self, own_url: str, *, loopback_only: bool, setting: str = "LAGLOSS_DASHBOARD_URL") -> None:
        self._own = origin_of(own_url)
        self._loopback_only = loopback_only
        self._setting = setting

    def check(self, connection: HTTPConnection) -> None:
        """Return whether the request may be answered.

        Raises:
            Problem: 421 for a Host that is not ours, 403 for a request of another site's page.
        """
        self._check_host(connection.headers)
        if connection.headers.get("sec-fetch-site", "none") not in ("same-origin", "none") and not is_navigation(
            connection
        ):
            raise _cross_site("the request comes from a page of another site (Sec-Fetch-Site)")
        if connection.scope["type"] == "websocket" or connection.scope["method"] not in _SAFE_METHODS:
            self._check_page(connection)

    def _check_host(self, headers: Headers) -> None:
        hosts = headers.getlist("host")
        name = urlsplit(origin_of(f"http://{hosts[0]}")).hostname if len(hosts) == 1 else None
        if not name:
            raise Problem(400, "Bad host", "expected one Host header with a name and an optional port")
        if self._loopback_only and not is_loopback(name) and name != urlsplit(self._own).hostname:
            detail = f"expected the Host of this machine (127.0.0.1, localhost) or of {self._setting}"
            raise Problem(421, "Unknown host", detail)

    def _check_page(self, connection: HTTPConnection) -> None:
        """Something is to be done, or a WebSocket opened: only a page of ours may ask for it, or no page at all."""
        headers = connection.headers
        origins = headers.getlist("origin")
        if origins:
            if len(origins) > 1 or origins[0] not in self._expected(connection):
                expected = " or ".join(sorted(self._expected(connection)))
                raise _cross_site(f"expected Origin {expected}; set {self._setting} to the URL that browsers use")
        elif headers.get("sec-fetch-site") != "same-origin" and is_browser(headers):
            raise _cross_site("expected an Origin header, since the request has a cookie")

    def _expected(self, connection: HTTPConnection) -> set[str]:
        """Return the origins that are ours. If HTTPS is configured, no page that came by HTTP is: it may have been
        changed on its way."""
        if self._own.startswith("https:"):
            return {self._own}
        scheme = {"ws": "http", "wss": "https"}.get(connection.scope["scheme"], connection.scope["scheme"])
        return {self._own, origin_of(f"{scheme}://{connection.headers['host']}")} - {""}


class OwnOrigins:
    """An ASGI application around another that answers only what these rules allow."""

    def __init__(self, app: ASGIApp, origins: Origins) -> None:
        self._app = app
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._origins.check(HTTPConnection(scope))
            except Problem as problem:
                await problem.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _cross_site(detail: str) -> Problem:
    return Problem(403, "Cross-site request", detail)
