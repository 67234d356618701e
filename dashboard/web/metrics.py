"""Metrics of the dashboard: every name is declared here and described in docs/operations.md."""

from __future__ import annotations

import time

from prometheus_client import Counter, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lagloss_server.net.exposition import SetAsideCounts, registry_of


class DashboardMetrics:
    """The dashboard's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry_of("dashboard")
        self.set_aside = SetAsideCounts(self.registry)
        self.requests = Counter(
            "lagloss_dashboard_requests",
            "Requests answered, by route and HTTP status",
            ["route", "status"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "lagloss_dashboard_request_seconds", "Time to answer a request, by route", ["route"], registry=self.registry
        )


class CountedRequests:
    """An ASGI application around another that counts requests by route, whose number is bounded."""

    def __init__(self, app: ASGIApp, metrics: DashboardMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500

        async def note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, note)
        finally:
            route = _route(scope)
            self._metrics.requests.labels(route, str(status)).inc()
            self._metrics.seconds.labels(route).observe(time.perf_counter() - began)


def _route(scope: Scope) -> str:
    """Return the template of the route that answered, `/api/v1/pipelines/{name}`; "other" if none did."""
    template = getattr(scope.get("route"), "path", None)
    return f"{scope.get('root_path', '')}{template}" if template else "other"
