"""Problem details (RFC 9457): the only form in which HTTP APIs of lagloss report errors."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, Literal

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from msgspec import Struct
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from lagloss_server.base.invalid import explain, write_path
from lagloss_server.net.responses import declare_responses, encode, schema_of

RETRY_AFTER_S: Final = 5
PROBLEM: Final = "application/problem+json"


class ProblemDocument(Struct, omit_defaults=True):
    """A problem of RFC 9457. `position` is the index of a beacon, block, event or span, from 0; `line` counts from
    1.
    """

    type: Literal["about:blank"]
    title: str
    status: int
    detail: str
    position: int | None = None
    field: str | None = None
    line: int | None = None


class Problem(Exception):
    """{detail}"""

    def __init__(
        self,
        status: int,
        title: str,
        detail: str,
        *,
        position: int | None = None,
        field: str | None = None,
        line: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.document = ProblemDocument("about:blank", title, status, detail, position, field, line)
        self.headers = dict(headers or {})

    def response(self) -> Response:
        return Response(encode(self.document), self.status, self.headers, PROBLEM)


def busy(detail: str, retry_after_s: int = RETRY_AFTER_S) -> Problem:
    """Return a problem for a correct request that can be sent again later."""
    return Problem(503, "Temporarily unavailable", detail, headers={"Retry-After": str(retry_after_s)})


def too_large(max_bytes: int) -> Problem:
    # The rest of the body is not worth reading.
    detail = f"expected up to {max_bytes} bytes after decompression; send less per request"
    return Problem(413, "Body too large", detail, headers={"Connection": "close"})


def documented(*codes: int) -> dict[int | str, dict[str, Any]]:
    """Return the error responses of a route, for its OpenAPI document."""
    content = {PROBLEM: {"schema": schema_of(ProblemDocument)}}
    return {code: {"description": HTTPStatus(code).phrase, "content": content} for code in codes}


def install(app: FastAPI, service: str) -> None:
    """Make the application report its own errors (no such path, wrong method, a bug) as problem documents, and declare
    its responses. To be called before routes are added.

    `service`: the name in messages about a bug, such as `the collector`.
    """
    declare_responses(app)

    @app.exception_handler(Problem)
    async def on_problem(_: Request, problem: Problem) -> Response:
        return problem.response()

    @app.exception_handler(HTTPException)
    async def on_http(request: Request, error: HTTPException) -> Response:
        detail = f"{request.method} {request.url.path} is not supported; see /openapi.json for the paths"
        headers = dict(error.headers or {})
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = ", ".join(sorted(_methods(app, request)))
        return Problem(error.status_code, HTTPStatus(error.status_code).phrase, detail, headers=headers).response()

    @app.exception_handler(RequestValidationError)
    async def on_invalid(_: Request, error: RequestValidationError) -> Response:
        errors = error.errors()
        sent: dict[object, dict[object, object]] = {}
        for detail in errors:
            source, *names = detail["loc"]
            if detail["type"] != "missing":
                sent.setdefault(source, {}).update(dict.fromkeys(names[:1], detail["input"]))
        first = next(explain(errors, sent))
        return Problem(422, "Bad parameter", first.problem, field=write_path(first.path[1:])).response()

    @app.exception_handler(Exception)
    async def on_bug(_: Request, error: Exception) -> Response:
        return Problem(
            500, f"Internal error of {service}", f"{type(error).__name__}; see the log of the service"
        ).response()


def _methods(app: FastAPI, request: Request) -> set[str]:
    """Return the methods of all routes of this path: each route knows only its own."""
    routes = (route for route in app.routes if isinstance(route, Route))
    return {
        method
        for route in routes
        if route.matches(request.scope)[0] is not Match.NONE
        for method in route.methods or ()
    }
