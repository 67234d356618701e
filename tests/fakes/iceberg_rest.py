"""A catalog of Iceberg as its REST specification has it, of what a tap requests: configuration, a token, a table.

Real ones are not on package registries as programs: the reference server of Apache Iceberg is a test fixture that is
not published, Polaris and Nessie are published as parts that have to be built, and Lakekeeper is a binary.
"""

from __future__ import annotations

import json
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError

from tests.fakes.http_receiver import HttpReceiver, Reply, Request

TOKEN: Final = "token-of-the-tap"
CREDENTIAL: Final = "tap:secret"


class RestCatalogServer(HttpReceiver):
    """Serves the tables of another catalog to those who have logged in by `CREDENTIAL`. `config`: what it says of a
    table's files."""

    def __init__(self, catalog: Catalog, config: dict[str, str] | None = None) -> None:
        super().__init__()
        self._catalog = catalog
        self.config = config or {}
        self.loads = 0

    def answer(self, request: Request) -> Reply:
        path = urlsplit(request.path).path
        if path == "/v1/oauth/tokens":
            form = {name: values[0] for name, values in parse_qs(request.body.decode()).items()}
            if f"{form.get('client_id')}:{form.get('client_secret')}" != CREDENTIAL:
                return _reply(401, {"error": "invalid_client", "error_description": "unknown client"})
            return _reply(200, {"access_token": TOKEN, "token_type": "bearer", "expires_in": 3600})
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return _error(401, "NotAuthorizedException", "no valid token")
        if path == "/v1/config":
            return _reply(200, {"defaults": {}, "overrides": {}})
        _, version, _namespaces, namespace, _tables, name = path.split("/")
        assert version == "v1"
        self.loads += 1
        try:
            table = self._catalog.load_table((*namespace.split("\x1f"), name))
        except NoSuchTableError:
            return _error(404, "NoSuchTableException", f"Table does not exist: {namespace}.{name}")
        metadata = json.loads(table.metadata.model_dump_json(by_alias=True, exclude_none=True))
        answer = {"metadata-location": table.metadata_location, "metadata": metadata, "config": self.config}
        return _reply(200, answer)


def _reply(status: int, document: Any) -> Reply:
    return Reply(status, json.dumps(document).encode(), {"Content-Type": "application/json"})


def _error(status: int, kind: str, message: str) -> Reply:
    return _reply(status, {"error": {"message": message, "type": kind, "code": status}})
