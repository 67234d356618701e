"""Schema registries with the REST API of Confluent's: the schemas that Kafka records name by a number.

Apicurio (below `/apis/ccompat/v7`) and Karapace speak it, too. A registry that cannot be asked is an outage; a schema
that it does not know is an answer.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal, cast, get_args
from urllib.parse import quote, urlsplit

import httpx2

from lagloss.environment import secret
from lagloss.errors import BadSetting
from lagloss_server.base.errors import RegistryRefuses, RegistryUnreachable
from lagloss_server.net.http_answers import read_answer

PREFIX: Final = "LAGLOSS_SCHEMA_REGISTRY_"
FIELDS: Final = {
    "USERNAME": "username",
    "PASSWORD": "password",
    "TOKEN": "token",
    "CA_LOCATION": "ca_location",
    "CERTIFICATE_LOCATION": "certificate_location",
    "KEY_LOCATION": "key_location",
    "KEY_PASSWORD": "key_password",
}
"""Fields of a connection, beside its URL, by the rest of the variable's name."""
SECRETS: Final = frozenset({"PASSWORD", "TOKEN", "KEY_PASSWORD"})
"""Those that may also come from a file, named by the variable with `_FILE`."""
TIMEOUT_S: Final = 10.0
MISS_S: Final = 10.0
"""How long an unknown id is taken as unknown without asking again: it may be registered any moment."""
MAX_MISSES: Final = 100
"""Unknown ids within that time, after which others are taken as unknown, too: records that are not what they seem have
a new one each."""
MAX_ID: Final = 2**31 - 1
"""Of a schema. Registries count in 32 bits with a sign, and answer a larger number as if the URL were wrong: bytes that
only look like one would seem to be an outage."""
MAX_REFERENCES: Final = 200
MAX_KNOWN_BYTES: Final = 16 * 1024 * 1024
"""Of the schemas that are kept, with those that they refer to, for each tap. Beyond, the first are asked for again."""
NOT_FOUND: Final = (40401, 40402, 40403)
"""Error codes of a registry that does not know a subject, a version or a schema. Another 404 says that the URL is
wrong: Apicurio answers so, with an error code of 404, where its path is left out."""
_ACCEPT: Final = "application/vnd.schemaregistry.v1+json, application/json"

SchemaKind = Literal["AVRO", "JSON", "PROTOBUF"]


@dataclass(frozen=True)
class RegistryConnection:
    """The URL of a registry, and by what it lets a client in. Prints as its URL."""

    url: str
    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    ca_location: str = field(default="", repr=False)
    certificate_location: str = field(default="", repr=False)
    key_location: str = field(default="", repr=False)
    key_password: str = field(default="", repr=False)

    @classmethod
    def of_environment(cls, environ: Mapping[str, str] | None = None, cluster: str = "") -> RegistryConnection | None:
        """Return the connection that the environment describes, None without a URL.

        `cluster`: the name of a Kafka cluster with a registry of its own, whose variables begin with
        `LAGLOSS_SCHEMA_REGISTRY_CLUSTER_NAME_`.

        Raises:
            BadSetting: the URL is none, a file cannot be read, or a secret is given in both ways.
        """
        environ = os.environ if environ is None else environ
        prefix = registry_prefix(cluster)
        url = environ.get(f"{prefix}URL", "").rstrip("/")
        if not url:
            return None
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            problem = "is not an http(s)://HOST… URL without user and password, which have their own variables"
            raise BadSetting(variable=f"{prefix}URL", problem=problem)
        settings = {
            ours: secret(environ, prefix + name) if name in SECRETS else environ.get(prefix + name, "")
            for name, ours in FIELDS.items()
        }
        for name in ("CA_LOCATION", "CERTIFICATE_LOCATION", "KEY_LOCATION"):
            path = settings[FIELDS[name]]
            if path and not os.access(path, os.R_OK):
                raise BadSetting(variable=prefix + name, problem=f"is {path}, which cannot be read")
        return cls(url, **settings)

    @property
    def who(self) -> str:
        """As whom a client of this connection comes, for a message."""
        if self.token:
            return "the token"
        if self.username:
            return f"user {self.username}"
        return f"certificate {self.certificate_location}" if self.certificate_location else "an anonymous client"

    def client(self) -> httpx2.Client:
        """Return a client of this registry.

        Raises:
            BadSetting: a certificate or key cannot be used.
        """
        headers = {"Accept": _ACCEPT}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        credentials = (self.username, self.password) if self.username and not self.token else None
        return httpx2.Client(headers=headers, auth=credentials, verify=self._tls(), timeout=TIMEOUT_S)

    def _tls(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.ca_location or None)
        except OSError as error:
            raise BadSetting(variable=f"{PREFIX}CA_LOCATION", problem=f"cannot be used: {error}") from None
        if self.certificate_location:
            try:
                context.load_cert_chain(self.certificate_location, self.key_location or None, lambda: self.key_password)
            except OSError as error:
                raise BadSetting(variable=f"{PREFIX}CERTIFICATE_LOCATION", problem=f"cannot be used: {error}") from None
        return context

    def printable(self) -> dict[str, str]:
        """Return the fields that are set by their variables' names in small letters, secrets blanked."""
        values = {"URL": self.url} | {name: str(getattr(self, ours)) for name, ours in FIELDS.items()}
        shown = {name: "***" if name in SECRETS else value for name, value in values.items() if value}
        return {f"schema_registry_{name.lower()}": value for name, value in shown.items()}

    def __str__(self) -> str:
        return self.url


def registry_prefix(cluster: str = "") -> str:
    """Return what the variables of a cluster's registry begin with."""
    name = "".join(character if character.isascii() and character.isalnum() else "_" for character in cluster.upper())
    return f"{PREFIX}CLUSTER_{name}_" if cluster else PREFIX


class _Unusable(Exception):
    """The registry has the schema, but records cannot be read with it. Not an outage: retrying does not help."""


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema: its text, and those that it refers to by the names that it knows them by, each after its own.

    `descriptor` and `descriptors`: of Protobuf, the same as serialized FileDescriptorProto, where the registry can
    compile them; else empty.
    """

    kind: SchemaKind
    text: str
    references: Mapping[str, str] = field(default_factory=dict)
    descriptor: bytes = b""
    descriptors: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Its characters and bytes, and those of the schemas that it refers to."""
        return sum(map(len, (self.text, self.descriptor, *self.references.values(), *self.descriptors.values())))


def registry_of(cluster: str) -> SchemaRegistry | None:
    """Return the schema registry of a cluster, None where the environment names none.

    Raises:
        BadSetting: see `RegistryConnection.of_environment`.
    """
    connection = RegistryConnection.of_environment(cluster=cluster)
    return None if connection is None else SchemaRegistry(connection)


class SchemaRegistry:
    """The schemas of one registry by their ids: each is asked for once, since an id never means another schema.

    It can be pickled, without what it knows: each process asks for itself.
    """

    def __init__(self, connection: RegistryConnection, clock: Callable[[], float] = time.monotonic) -> None:
        self.connection = connection
        self._clock = clock
        self._known: dict[int, RegisteredSchema] = {}
        self._missed: dict[int, float] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.connection,)

    def schema(self, schema_id: int) -> RegisteredSchema | None:
        """Return the schema with this id, None if the registry does not know it, or what it refers to, or if it is of
        another type.

        Raises:
            RegistryUnreachable: the registry did not answer, or failed.
            RegistryRefuses: it wants other credentials.
            BadSetting: a certificate or key cannot be used.
        """
        known_schema = self._known.get(schema_id)
        if known_schema is not None or schema_id > MAX_ID or self._is_missing(schema_id):
            return known_schema
        place = f"/schemas/ids/{schema_id}"
        try:
            answer = self._ask(place)
            if answer is not None:
                known_schema = self._whole(place, answer)
                self._keep(schema_id, known_schema)
        except _Unusable:
            pass
        if known_schema is None:
            self._missed[schema_id] = self._clock() + MISS_S
        return known_schema

    def kinds(self) -> list[str]:
        """Return the types of schemas that the registry takes.

        Raises:
            RegistryUnreachable, RegistryRefuses, BadSetting: as `schema`.
        """
        place = "/schemas/types"
        status, body = self._get(place)
        if status != 200 or not isinstance(body, list):
            raise self._odd(place, f"status {status}" if status != 200 else "a response that is not a list")
        return [str(kind) for kind in body]

    def close(self) -> None:
        """Close its connections, which the next question opens anew."""
        if "_client" in self.__dict__:
            self.__dict__.pop("_client").close()

    @cached_property
    def _client(self) -> httpx2.Client:
        return self.connection.client()

    def _keep(self, schema_id: int, schema: RegisteredSchema) -> None:
        self._known[schema_id] = schema
        while sum(known_schema.size for known_schema in self._known.values()) > MAX_KNOWN_BYTES:
            del self._known[next(iter(self._known))]

    def _is_missing(self, schema_id: int) -> bool:
        now = self._clock()
        if len(self._missed) >= MAX_MISSES or schema_id in self._missed:
            self._missed = {missed: until for missed, until in self._missed.items() if until > now}
        return schema_id in self._missed or len(self._missed) >= MAX_MISSES

    def _whole(self, place: str, answer: Mapping[str, Any]) -> RegisteredSchema:
        """Return a schema with all that it refers to."""
        kind = answer.get("schemaType", "AVRO")
        if kind not in get_args(SchemaKind):
            raise _Unusable
        references: dict[str, str] = {}
        descriptors: dict[str, bytes] = {}
        self._add_references(place, answer, kind == "PROTOBUF", references, descriptors, set())
        descriptor = self._descriptor(place, answer) if kind == "PROTOBUF" else b""
        return RegisteredSchema(cast("SchemaKind", kind), answer["schema"], references, descriptor, descriptors)

    def _add_references(
        self, place: str, answer: Mapping[str, Any], is_protobuf: bool, texts: dict[str, str],
        descriptors: dict[str, bytes], begun: set[str],
    ) -> None:  # fmt: skip
        for reference in answer.get("references") or ():
            try:
                name, subject, version = str(reference["name"]), str(reference["subject"]), int(reference["version"])
            except (TypeError, KeyError, ValueError):
                raise self._odd(place, "a reference without a name, subject or version") from None
            if name in begun:
                continue
            begun.add(name)
            if len(begun) > MAX_REFERENCES:
                raise self._odd(place, f"more than the supported {MAX_REFERENCES} references")
            where = f"/subjects/{quote(subject, safe='')}/versions/{version}"
            schema = self._ask(where) or self._ask(f"{where}?deleted=true")  # records stay when a subject is deleted
            if schema is None:
                raise _Unusable
            self._add_references(where, schema, is_protobuf, texts, descriptors, begun)
            texts[name] = schema["schema"]
            if is_protobuf:
                descriptors[name] = self._descriptor(where, schema)

    def _descriptor(self, place: str, answer: Mapping[str, Any]) -> bytes:
        """Return a Protobuf schema compiled by the registry, empty if it cannot."""
        serialized = self._ask(f"{place}?format=serialized", optional=True)
        if serialized is None or serialized["schema"] == answer["schema"]:
            return b""
        try:
            return base64.b64decode(serialized["schema"], validate=True)
        except (binascii.Error, ValueError):
            return b""

    def _ask(self, place: str, optional: bool = False) -> dict[str, Any] | None:
        """Return the answer to a question for a schema, None if there is none, or, where it is `optional`, if the
        registry does not know such questions."""
        status, body = self._get(place)
        if status == 404 and isinstance(body, dict) and body.get("error_code") in NOT_FOUND:
            return None
        if optional and 400 <= status < 500 and status != 429:
            return None
        if status != 200:
            raise self._odd(place, f"status {status}")
        if not isinstance(body, dict) or not isinstance(body.get("schema"), str):
            raise self._odd(place, "a response that is not a schema")
        return body

    def _get(self, place: str) -> tuple[int, Any]:
        """Return the status and the document of an answer, None for what is no JSON."""
        until_s = time.monotonic() + TIMEOUT_S
        try:
            with self._client.stream("GET", self.connection.url + place) as answer:
                body = read_answer(answer, until_s)
        except httpx2.HTTPError as error:
            detail = str(error) or type(error).__name__
            raise RegistryUnreachable(url=self.connection.url, detail=detail) from error
        if answer.status_code in (401, 403):
            detail = f"it returned {answer.status_code} for {place}"
            raise RegistryRefuses(url=self.connection.url, who=self.connection.who, detail=detail)
        try:
            return answer.status_code, json.loads(body)
        except (ValueError, RecursionError):
            return answer.status_code, None

    def _odd(self, place: str, text: str) -> RegistryUnreachable:
        return RegistryUnreachable(url=self.connection.url, detail=f"it answered {place} with {text}")
