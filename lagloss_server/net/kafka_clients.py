"""Kafka's other clients: a connection in the terms of kafka-python and of the Java client, which Spark uses.

librdkafka's own are the connection's properties: lagloss/broker/connection.py.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import httpx2
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from kafka.net.sasl.oauth import AbstractTokenProvider

from lagloss.broker.connection import MSK, KafkaConnection, msk_token
from lagloss.errors import BadSetting
from lagloss_server.net.http_answers import read_answer

TOKEN_TIMEOUT_S: Final = 10.0
_KAFKA_PYTHON: Final = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
}
_LOGIN_MODULES: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    MSK: "software.amazon.msk.auth.iam.IAMLoginModule",
    "OAUTHBEARER": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
}
_OAUTH_CALLBACK: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"


def kafka_python_config(connection: KafkaConnection) -> dict[str, Any]:
    """Return the configuration of a client of kafka-python."""
    config: dict[str, Any] = {"bootstrap_servers": connection.bootstrap.split(",")}
    properties = connection.properties
    config |= {ours: properties[name] for name, ours in _KAFKA_PYTHON.items() if name in properties}
    if properties.get("ssl.endpoint.identification.algorithm") == "none":
        config["ssl_check_hostname"] = False
    if properties.get("sasl.mechanism") == "OAUTHBEARER":
        config["sasl_oauth_token_provider"] = ClientCredentials(properties)
    if connection.is_msk:
        config |= {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": MskTokens()}
    return config


class MskTokens(AbstractTokenProvider):  # type: ignore[misc]  # without types
    """Tokens for kafka-python as Amazon MSK wants them."""

    def token(self) -> str:
        return msk_token()[0]


class ClientCredentials(AbstractTokenProvider):  # type: ignore[misc]  # without types
    """Tokens for kafka-python by the client-credentials grant of OAuth 2 (RFC 6749, 4.4), as librdkafka's `oidc`."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        super().__init__()
        self._given = {name.removeprefix("sasl.oauthbearer."): value for name, value in properties.items()}

    def token(self) -> str:
        """Ask for a token; the client does so at each connection.

        Raises:
            httpx2.HTTPError: the endpoint refused, or did not answer as it should.
        """
        form = {"grant_type": "client_credentials"}
        if "scope" in self._given:
            form["scope"] = self._given["scope"]
        credentials = self._given.get("client.id", ""), self._given.get("client.secret", "")
        endpoint = self._given.get("token.endpoint.url", "")
        until_s = time.monotonic() + TOKEN_TIMEOUT_S
        with httpx2.stream("POST", endpoint, data=form, auth=credentials, timeout=TOKEN_TIMEOUT_S) as answer:
            body = read_answer(answer.raise_for_status(), until_s)
        return str(json.loads(body)["access_token"])


def java_options(connection: KafkaConnection) -> dict[str, str]:
    """Return the options of Spark's Kafka source. Certificates and keys are in them as text: executors have no files.

    Raises:
        BadSetting: a certificate or key cannot be read.
    """
    properties = connection.properties
    options = {"bootstrap.servers": connection.bootstrap}
    options |= {name: properties[name] for name in ("security.protocol", "sasl.mechanism") if name in properties}
    if "sasl.mechanism" in properties:
        options["sasl.jaas.config"] = _login_module(connection)
    if connection.is_msk:
        options["sasl.client.callback.handler.class"] = "software.amazon.msk.auth.iam.IAMClientCallbackHandler"
    if properties.get("sasl.mechanism") == "OAUTHBEARER":
        options["sasl.oauthbearer.token.endpoint.url"] = properties.get("sasl.oauthbearer.token.endpoint.url", "")
        options["sasl.login.callback.handler.class"] = _OAUTH_CALLBACK
    if "ssl.ca.location" in properties:
        options |= {
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": _text(properties["ssl.ca.location"], "CA"),
        }
    if "ssl.certificate.location" in properties and "ssl.key.location" in properties:
        options |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": _text(properties["ssl.certificate.location"], "CERTIFICATE"),
            "ssl.keystore.key": _key(properties["ssl.key.location"], properties.get("ssl.key.password")),
        }
    if properties.get("ssl.endpoint.identification.algorithm") == "none":
        options["ssl.endpoint.identification.algorithm"] = ""
    return {f"kafka.{name}": value for name, value in options.items()}


def _login_module(connection: KafkaConnection) -> str:
    """Return the value of sasl.jaas.config."""
    properties = connection.properties
    mechanism = properties["sasl.mechanism"]
    if mechanism not in _LOGIN_MODULES:
        expected = ", ".join(_LOGIN_MODULES)
        raise BadSetting(variable="LAGLOSS_KAFKA_SASL_MECHANISM", problem=f"is {mechanism}, expected {expected}")
    names = {"username": "sasl.username", "password": "sasl.password"}
    if mechanism == "OAUTHBEARER":
        kinds = {"clientId": "client.id", "clientSecret": "client.secret", "scope": "scope"}
        names = {name: f"sasl.oauthbearer.{kind}" for name, kind in kinds.items()}
    options = [f"{name}={_quoted(properties[ours])}" for name, ours in names.items() if ours in properties]
    return f"{_LOGIN_MODULES[mechanism]} required {' '.join(options)};"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _text(path: str, kind: str) -> str:
    try:
        return Path(path).read_text("ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(kind, path, error) from error


def _key(path: str, password: str | None) -> str:
    """Return the private key in PKCS #8, the only form that the Java client reads, without a password."""
    try:
        key = load_pem_private_key(Path(path).read_bytes(), password.encode() if password else None)
    except (OSError, ValueError, TypeError) as error:
        raise _unreadable("KEY", path, error) from error
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def _unreadable(kind: str, path: str, error: Exception) -> BadSetting:
    return BadSetting(
        variable=f"LAGLOSS_KAFKA_SSL_{kind}_LOCATION", problem=f"is {path}, which cannot be read: {error}"
    )
