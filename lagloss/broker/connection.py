"""The connection to a Kafka cluster: its addresses, and the properties by which a client is let in.

Properties have librdkafka's names; the server translates them for its other clients
(lagloss_server/net/kafka_clients.py). From the environment, LAGLOSS_KAFKA_… sets them for every process:
docs/kafka.md lists the variables.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Final, Self

from lagloss.environment import secret
from lagloss.errors import BadSetting

PREFIX: Final = "LAGLOSS_KAFKA_"
BOOTSTRAP_VARIABLE: Final = f"{PREFIX}BOOTSTRAP"
PROPERTIES: Final = {
    name: name.lower().replace("_", ".")
    for name in (
        "SECURITY_PROTOCOL",
        "SASL_MECHANISM",
        "SASL_USERNAME",
        "SASL_PASSWORD",
        "SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL",
        "SASL_OAUTHBEARER_CLIENT_ID",
        "SASL_OAUTHBEARER_CLIENT_SECRET",
        "SASL_OAUTHBEARER_SCOPE",
        "SSL_CA_LOCATION",
        "SSL_CERTIFICATE_LOCATION",
        "SSL_KEY_LOCATION",
        "SSL_KEY_PASSWORD",
        "SSL_ENDPOINT_IDENTIFICATION_ALGORITHM",
    )
}
"""librdkafka's property by the rest of the variable's name."""
SECRETS: Final = frozenset({"SASL_PASSWORD", "SASL_OAUTHBEARER_CLIENT_SECRET", "SSL_KEY_PASSWORD"})
"""Those that may also come from a file, named by the variable with `_FILE`."""
ANY_PROPERTY: Final = "PROPERTY_"
"""LAGLOSS_KAFKA_PROPERTY_CLIENT_RACK sets client.rack: any other property of librdkafka."""

MSK: Final = "AWS_MSK_IAM"
MSK_PACKAGE: Final = "aws_msk_iam_sasl_signer"
_CLUSTER_BOOTSTRAP: Final = re.compile(f"{PREFIX}CLUSTER_([A-Z0-9_]+)_BOOTSTRAP")
_SECRET: Final = re.compile("password|secret|token|jaas|pem", re.IGNORECASE)


@dataclass(frozen=True)
class KafkaConnection:
    """The addresses of a cluster (`HOST:PORT,…`) and librdkafka's properties of security. Prints as its addresses."""

    bootstrap: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, cluster: Cluster) -> KafkaConnection:
        """Return a connection as it is; of mere addresses, one with the environment's properties.

        Raises:
            BadSetting: see `properties_of`.
        """
        return cluster if isinstance(cluster, KafkaConnection) else cls(cluster, properties_of(os.environ))

    @classmethod
    def of_environment(cls, environ: Mapping[str, str] | None = None, cluster: str = "") -> Self | None:
        """Return the connection that the environment describes, None without an address.

        `cluster`: the name of another cluster than that of lagloss's topics, whose variables begin with
        `LAGLOSS_KAFKA_CLUSTER_NAME_`.

        Raises:
            BadSetting: see `properties_of`.
        """
        environ = os.environ if environ is None else environ
        bootstrap = environ.get(f"{prefix_of(cluster)}BOOTSTRAP", "")
        return cls(bootstrap, properties_of(environ, cluster)) if bootstrap else None

    @classmethod
    def named(cls, cluster: str) -> Self:
        """Return the connection to a named cluster, which a pipeline's definition names.

        Raises:
            BadSetting: the environment says nothing of it, or see `properties_of`.
        """
        connection = cls.of_environment(cluster=cluster)
        if connection is None:
            raise BadSetting(
                variable=f"{prefix_of(cluster)}BOOTSTRAP",
                problem=f"is not set, but the definition of a pipeline uses the cluster {cluster}",
            )
        return connection

    @staticmethod
    def cluster_names(environ: Mapping[str, str] | None = None) -> set[str]:
        """Return the names of the other clusters that the environment describes, in small letters."""
        environ = os.environ if environ is None else environ
        matches = (_CLUSTER_BOOTSTRAP.fullmatch(name) for name, value in environ.items() if value)
        return {match[1].lower().replace("_", "-") for match in matches if match}

    def client(self, properties: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the configuration of a client of librdkafka, with these properties of its own.

        Raises:
            BadSetting: the package that makes tokens for Amazon MSK is not installed.
        """
        config: dict[str, Any] = {"bootstrap.servers": self.bootstrap, **self.properties}
        if self.is_msk:
            config |= {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": msk_token}
            if find_spec(MSK_PACKAGE) is None:
                raise BadSetting(
                    variable="LAGLOSS_KAFKA_SASL_MECHANISM", problem=f"is {MSK}, which needs `pip install lagloss[msk]`"
                )
        return {**config, **(properties or {})}

    @property
    def is_msk(self) -> bool:
        """Clients show who they are by AWS credentials, with tokens that they sign themselves."""
        return self.properties.get("sasl.mechanism") == MSK

    def printable(self) -> dict[str, str]:
        """Return the properties, secrets blanked."""
        return {name: "***" if _SECRET.search(name) else value for name, value in self.properties.items()}

    @property
    def who(self) -> str:
        """As whom a client of this connection comes, for a message."""
        properties = self.properties
        name = properties.get("sasl.username") or properties.get("sasl.oauthbearer.client.id")
        if name:
            return f"user {name}"
        certificate = properties.get("ssl.certificate.location")
        return f"certificate {certificate}" if certificate else "an anonymous client"

    def __str__(self) -> str:
        return self.bootstrap


Cluster = str | KafkaConnection
"""Addresses of a cluster (`HOST:PORT,…`), to which the environment's properties apply, or a whole connection."""


def msk_token(_config: str = "") -> tuple[str, float]:
    """Sign a token for Amazon MSK with AWS' usual credentials, in the region of AWS_REGION; return it and when it ends
    (epoch s). librdkafka calls this."""
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider

    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION", "")
    token, ends_ms = MSKAuthTokenProvider.generate_auth_token(region)
    return token, ends_ms / 1_000


def prefix_of(cluster: str = "") -> str:
    """Return what the variables of a cluster begin with."""
    return f"{PREFIX}CLUSTER_{re.sub('[^A-Z0-9]', '_', cluster.upper())}_" if cluster else PREFIX


def properties_of(environ: Mapping[str, str], cluster: str = "") -> dict[str, str]:
    """Return librdkafka's properties of a cluster in the environment; empty variables are not set.

    Raises:
        BadSetting: a file of a secret or certificate cannot be read, or a secret is given in both ways.
    """
    prefix = prefix_of(cluster)
    properties = {}
    for name, property_ in PROPERTIES.items():
        value = secret(environ, prefix + name) if name in SECRETS else environ.get(prefix + name, "")
        if value:
            properties[property_] = value
    start = prefix + ANY_PROPERTY
    others = {name[len(start) :]: value for name, value in environ.items() if name.startswith(start) and value}
    properties |= {name.lower().replace("_", "."): value for name, value in others.items()}
    for name in ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location"):
        if name in properties and not os.access(properties[name], os.R_OK):
            variable = f"{prefix}{name.upper().replace('.', '_')}"
            raise BadSetting(variable=variable, problem=f"is {properties[name]}, which cannot be read")
    if properties.get("sasl.mechanism") == "OAUTHBEARER" and "sasl.oauthbearer.client.id" in properties:
        properties.setdefault("sasl.oauthbearer.method", "oidc")
    return properties
