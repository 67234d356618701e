"""/v1/pipelines: definitions over HTTP, with the same errors as `lagloss apply`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

from fastapi import FastAPI, Request, Response

from collector.access import Caller, Need
from collector.bodies import MAX_DEFINITION_BYTES
from collector.services import CollectorServices, ask, body_document, media_type
from lagloss_server.base.errors import BadDefinition, LimitReached, ReservedName, TooManyVersions, UnknownPipeline
from lagloss_server.base.fields import Name
from lagloss_server.base.invalid import Invalid, write_path
from lagloss_server.model.defaults import Defaults
from lagloss_server.model.definition import Definition, PipelineDocument, parse_definition
from lagloss_server.net.problem_details import Problem, busy, documented
from lagloss_server.net.responses import JSON, Json, json_content
from lagloss_server.store import audit
from lagloss_server.store.store import Store

YAML: Final = "application/yaml"
MAX_VERSIONS_A_DAY: Final = 100
"""New versions of a pipeline within 24 hours. All of them are kept, and read by every service at its start."""
T = TypeVar("T")


def add_routes(app: FastAPI, services: CollectorServices) -> None:
    """Add the routes, on these services."""
    api = Definitions(services)
    refused = documented(401, 403, 404, 422, 429, 503)

    @app.get("/v1/pipelines", responses=documented(401, 429, 503))
    async def list_pipelines(request: Request) -> Json[list[PipelineDocument]]:
        """Return the newest version of each pipeline that the caller can read."""
        return await services.answered("definitions", request, api.list_all)

    @app.get("/v1/pipelines/{name}", responses=refused)
    async def get_pipeline(name: Name, request: Request) -> Json[PipelineDocument]:
        """Return the newest version."""
        return await services.answered("definitions", request, lambda asking: api.get(asking, name))

    @app.get("/v1/pipelines/{name}/versions", responses=refused)
    async def get_versions(name: Name, request: Request) -> Json[list[PipelineDocument]]:
        """Return all versions, oldest first."""
        return await services.answered("definitions", request, lambda asking: api.versions(asking, name))

    @app.put(
        "/v1/pipelines/{name}",
        responses=documented(400, 401, 403, 409, 413, 415, 422, 429, 503)
        | {201: {"content": json_content(PipelineDocument), "description": "A new version"}},
        openapi_extra=body_document({YAML: {"type": "string"}, JSON: _schema(Definition)}),
    )
    async def put_pipeline(name: Name, request: Request) -> Json[PipelineDocument]:
        """Store a definition, like `lagloss apply`: 201 with the new version, 200 if nothing changed."""
        return await services.answered("definitions", request, lambda asking: api.put(asking, name))

    @app.delete("/v1/pipelines/{name}", status_code=204, responses=refused)
    async def delete_pipeline(name: Name, request: Request) -> Response:
        """Delete a pipeline. Its windows stay until their retention expires; PUT creates its next version."""
        return await services.answered("definitions", request, lambda asking: api.delete(asking, name))

    @app.get("/v1/schemas/pipeline.json")
    async def pipeline_schema() -> Json[dict[str, Any]]:
        """Return the JSON Schema of a pipeline's definition, for editors."""
        return Json(_schema(Definition))

    @app.get("/v1/schemas/defaults.json")
    async def defaults_schema() -> Json[dict[str, Any]]:
        """Return the JSON Schema of defaults for definitions, which `lagloss apply` reads, for editors."""
        return Json(_schema(Defaults))


class Definitions:
    """Handles definitions."""

    def __init__(self, services: CollectorServices) -> None:
        self._services = services

    async def list_all(self, request: Request) -> Json[list[PipelineDocument]]:
        access = self._services.access
        caller = await access.caller(request)
        await access.charge_question(caller, 1)
        names = None if caller.token is None else [caller.token.pipeline]
        visible = []
        for stored in await self._ask(lambda store: store.pipelines(names)):
            if await self._sees(caller, stored.name):
                visible.append(stored.document())
        return Json(visible)

    async def get(self, request: Request, name: str) -> Json[PipelineDocument]:
        caller = await self._admit(request, name)
        await self._services.access.charge_question(caller, 1)
        return Json((await self._ask(lambda store: store.pipeline(name))).document())

    async def versions(self, request: Request, name: str) -> Json[list[PipelineDocument]]:
        access = self._services.access
        caller = await self._admit(request, name)
        newest = await access.pipeline(caller, name)
        await access.charge_question(caller, 1 if newest is None else newest.version)
        versions = await self._ask(lambda store: store.versions_of(name))
        return Json([stored.document() for stored in versions])

    async def put(self, request: Request, name: str) -> Json[PipelineDocument]:
        caller = await self._admit(request, name)
        media_type(request, YAML, JSON, "application/x-yaml", "text/yaml")
        charge = partial(self._services.access.charge_definition, name)
        async with self._services.bodies.read(request, MAX_DEFINITION_BYTES, caller.tenant, charge) as body:
            definition = await self._services.workers.run(caller.tenant, None, lambda: parsed(body), caller.has_gone)
        if definition.name != name:
            raise Problem(422, "Bad definition", f"expected metadata.name {name}", field="metadata.name")
        before = await self._ask(lambda store: store.newest_versions().get(name))
        version = await self._ask(lambda store: store.apply(definition, max_per_day=MAX_VERSIONS_A_DAY))
        await self._services.knowledge.refresh()
        stored = await self._ask(lambda store: store.pipeline(name))
        return Json(stored.document(), 200 if version == before else 201)

    async def delete(self, request: Request, name: str) -> Response:
        await self._admit(request, name, "delete")
        await self._ask(lambda store: store.delete(name))
        await self._services.knowledge.refresh()
        return Response(status_code=204)

    async def _admit(self, request: Request, name: str, needs: Need = "admin") -> Caller:
        caller = await self._services.access.caller(request)
        await self._services.access.admit(caller, name, needs)
        audit.act_as(_actor(caller, request))
        return caller

    async def _sees(self, caller: Caller, name: str) -> bool:
        try:
            await self._services.access.admit(caller, name, "admin")
        except Problem:
            return False
        return True

    async def _ask(self, question: Callable[[Store], T]) -> T:
        """Return the database's answer; a Problem (503) without one, 403, 404, 409 or 429."""
        store = self._services.knowledge.store
        if store is None:
            raise busy("definitions are stored in PostgreSQL, and this collector has none; set LAGLOSS_DATABASE_URL")
        if self._services.knowledge.hangs:  # another question would hang, and a thread with it
            raise busy("PostgreSQL does not respond; send again later")
        try:
            return await ask(lambda: question(store))
        except UnknownPipeline as error:
            raise Problem(404, "Unknown pipeline", str(error)) from None
        except ReservedName as error:
            raise Problem(403, "Reserved name", str(error)) from None
        except LimitReached as error:
            raise Problem(409, "Limit reached", str(error)) from None
        except TooManyVersions as error:
            headers = {"Retry-After": str(error.facts["wait_s"])}
            raise Problem(429, "Too many versions", str(error), headers=headers) from None


def _actor(caller: Caller, request: Request) -> audit.Actor:
    address = request.client.host if request.client else None
    if caller.token is None:
        return audit.Actor("local", "machine", address)
    return audit.Actor(caller.token.id, "token", address)


def parsed(body: bytes) -> Definition:
    """Return the definition in a body; raise a Problem (422) with the line if it is malformed."""
    try:
        return parse_definition(body.decode(), "body")
    except UnicodeDecodeError:
        raise Problem(422, "Bad definition", "body:1: expected text in UTF-8", line=1) from None
    except BadDefinition as error:
        line, problem = error.facts["line"], error.facts["problem"]
        raise Problem(
            422,
            "Bad definition",
            str(error),
            line=line if isinstance(line, int) else None,
            field=write_path(problem.path) if isinstance(problem, Invalid) and problem.path else None,
        ) from None


def _schema(model: type[Definition] | type[Defaults]) -> dict[str, Any]:
    # the mode in which durations are the text that people write
    schema = model.model_json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
