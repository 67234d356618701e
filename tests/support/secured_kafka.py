"""A Kafka as a company has it: SASL_SSL with SCRAM, certificates of an authority made here, and ACLs that are on."""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import socket
import ssl
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from lagloss_server.ops.embedded.kafka import EmbeddedKafka
from lagloss_server.ops.embedded.kafka_node import BrokerAccess
from tests.support.token_server import SECRET_OF

ADMIN = "admin"
ROLES = ("prepare", "emitter", "aggregator", "dashboard", "doctor", "taps", "up", "service")
PASSWORDS = {ADMIN: 'admin\'s "secret" \\ word', **{role: f'pass"word\\ of {role}' for role in ROLES}}
"""Odd ones on purpose: they are quoted in three dialects."""
MECHANISM = "SCRAM-SHA-512"
OTHER_MECHANISMS = ("PLAIN", "SCRAM-SHA-256")
"""By which every user is let in, too."""
SCOPE = "kafka write"
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_OAUTH = "org.apache.kafka.common.security.oauthbearer"
DOCS = Path(__file__).parents[2] / "docs" / "kafka.md"
KINDS = {"topic": ResourceType.TOPIC, "topics": ResourceType.TOPIC, "groups": ResourceType.GROUP}


class Authority:
    """A certificate authority of a test's own; its files are in `folder`."""

    def __init__(self, folder: Path, name: str = "lagloss test CA") -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = self._certificate(self._name, self._key.public_key(), days=30, is_authority=True)
        self.path = folder / "ca.pem"
        self.path.write_bytes(made.public_bytes(Encoding.PEM))

    def issue(self, name: str, days: int = 30, password: str = "") -> tuple[Path, Path]:
        """A certificate for loopback and its key, in two files; of -1 days it has expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate, secret = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        encryption = BestAvailableEncryption(password.encode()) if password else NoEncryption()
        certificate.write_bytes(self._certificate(subject, key.public_key(), days).public_bytes(Encoding.PEM))
        secret.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
        return certificate, secret

    def _certificate(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, days: int, *, is_authority: bool = False
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=10))
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )


@contextmanager
def expired_listener(authority: Authority) -> Iterator[str]:
    """The address of a listener whose certificate expired yesterday; no broker starts with one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("expired", days=-1))

    def serve() -> None:
        while True:
            try:
                context.wrap_socket(listener.accept()[0], server_side=True)
            except ssl.SSLError:
                continue
            except OSError:
                return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)


@dataclass(frozen=True)
class SecuredKafka:
    """A running broker, its authority, and what its users set."""

    kafka: EmbeddedKafka
    authority: Authority
    tokens: str

    @property
    def bootstrap(self) -> str:
        return self.kafka.bootstrap

    def environment(self, user: str, **changes: str) -> dict[str, str]:
        """The variables with which this user is let in; `changes` by the end of their names."""
        values = {
            "BOOTSTRAP": self.bootstrap,
            "SECURITY_PROTOCOL": "SASL_SSL",
            "SASL_MECHANISM": MECHANISM,
            "SASL_USERNAME": user,
            "SASL_PASSWORD": PASSWORDS[user],
            "SSL_CA_LOCATION": str(self.authority.path),
            **changes,
        }
        return {f"LAGLOSS_KAFKA_{name}": value for name, value in values.items()}

    def with_token(self, user: str, **changes: str) -> dict[str, str]:
        """The variables with which this user comes with a token."""
        values = {
            "SASL_MECHANISM": "OAUTHBEARER",
            "SASL_USERNAME": "",
            "SASL_PASSWORD": "",
            "SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL": f"{self.tokens}/token",
            "SASL_OAUTHBEARER_CLIENT_ID": user,
            "SASL_OAUTHBEARER_CLIENT_SECRET": SECRET_OF.format(user),
            "SASL_OAUTHBEARER_SCOPE": SCOPE,
        }
        return self.environment(user, **{**values, **changes})

    def allow(self, user: str, rights: Iterable[Right]) -> None:
        """Give a user rights; those of several parts may have some in common."""
        prefixed, literal = ResourcePatternType.PREFIXED, ResourcePatternType.LITERAL
        allow = AclPermissionType.ALLOW
        bindings = [
            AclBinding(KINDS[kind], name or "*", pattern, f"User:{user}", "*", AclOperation[operation], allow)
            for kind, name, operations in rights
            for pattern in [prefixed if name and kind.endswith("s") else literal]
            for operation in operations
        ]
        admin = AdminClient(client_of(self))  # has to live until its answers are there
        for made in admin.create_acls([*dict.fromkeys(bindings)]).values():
            made.result(20)

    def forbid(self, user: str) -> None:
        """Take all rights of a user away."""
        of = f"User:{user}", None, AclOperation.ANY, AclPermissionType.ANY
        admin = AdminClient(client_of(self))
        for taken in admin.delete_acls(
            [AclBindingFilter(ResourceType.ANY, None, ResourcePatternType.ANY, *of)]
        ).values():
            taken.result(20)


class Right(NamedTuple):
    """A row of the table of ACLs; `topics` and `groups` are all whose names begin so."""

    kind: str
    name: str
    operations: tuple[str, ...]


def documented_rights() -> dict[str, list[Right]]:
    """The rights of each part, as docs/kafka.md says them."""
    found: dict[str, list[Right]] = {}
    row = re.compile(r"^\| ([a-z ]+) \| (topics?|groups)(?: (\S+))? \| ([A-Z_, ]+) \|", re.MULTILINE)
    for part, kind, name, operations in row.findall(DOCS.read_text()):
        found.setdefault(part, []).append(Right(kind, name, tuple(operations.split(", "))))
    return found


def client_of(secured: SecuredKafka, user: str = ADMIN) -> dict[str, str]:
    """librdkafka's properties of a user."""
    return {"bootstrap.servers": secured.bootstrap, **_client(secured.authority, user)}


def _client(authority: Authority, user: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": MECHANISM,
        "sasl.username": user,
        "sasl.password": PASSWORDS[user],
        "ssl.ca.location": str(authority.path),
        "log_level": "0",
    }


def _jaas(user: str) -> str:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    return f'{module} required username="{user}" password="{_escaped(PASSWORDS[user])}";'


def _escaped(word: str) -> str:
    return word.replace("\\", "\\\\").replace('"', '\\"')


def _property(value: str) -> str:
    """A value as a file of Java's properties has it."""
    return value.replace("\\", "\\\\")


def _keystore(authority: Authority) -> dict[str, object]:
    """Properties of a broker that shows a certificate of the authority, and trusts those of others."""
    certificate, key = authority.issue("broker")
    keystore = authority.folder / "broker.keystore.pem"
    keystore.write_bytes(key.read_bytes() + certificate.read_bytes())
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": keystore,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": authority.path,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    }


@contextmanager
def certificate_kafka(authority: Authority) -> Iterator[EmbeddedKafka]:
    """A broker that lets in who has a certificate of the authority, by its common name; `admin` may do everything."""
    certificate, key = authority.issue(ADMIN)
    access = BrokerAccess(
        "SSL",
        {
            **_keystore(authority),
            "ssl.client.auth": "required",
            "ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/,DEFAULT",
            "super.users": f"User:{ADMIN};User:broker;User:ANONYMOUS",
        },
        (),
        {
            "security.protocol": "SSL",
            "ssl.ca.location": str(authority.path),
            "ssl.certificate.location": str(certificate),
            "ssl.key.location": str(key),
            "log_level": "0",
        },
    )
    kafka = EmbeddedKafka(authority.folder / "kafka", access=access).start()
    try:
        yield kafka
    finally:
        kafka.stop()


@contextmanager
def secured_kafka(folder: Path, tokens: str) -> Iterator[SecuredKafka]:
    """A broker whose users are those of PASSWORDS; `admin` may do everything, the others nothing yet. They come with
    their passwords, or with a token of the server at `tokens`."""
    authority = Authority(folder / "authority")
    oauth = "listener.name.sasl_ssl.oauthbearer"
    users = [
        f"--add-scram={mechanism}=[name={name},password={word}]"
        for mechanism in (MECHANISM, "SCRAM-SHA-256")
        for name, word in PASSWORDS.items()
    ]
    plain = " ".join(f'user_{name}="{_escaped(word)}"' for name, word in PASSWORDS.items())
    access = BrokerAccess(
        "SASL_SSL",
        {
            "sasl.enabled.mechanisms": ",".join((MECHANISM, *OTHER_MECHANISMS, "OAUTHBEARER")),
            "sasl.mechanism.inter.broker.protocol": MECHANISM,
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": _property(_jaas(ADMIN)),
            "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": _property(_jaas(ADMIN)),
            "listener.name.sasl_ssl.plain.sasl.jaas.config": _property(f"{_PLAIN} required {plain};"),
            f"{oauth}.sasl.jaas.config": f"{_OAUTH}.OAuthBearerLoginModule required;",
            f"{oauth}.sasl.server.callback.handler.class": f"{_OAUTH}.OAuthBearerValidatorCallbackHandler",
            "sasl.oauthbearer.jwks.endpoint.url": f"{tokens}/keys",
            "sasl.oauthbearer.expected.audience": "kafka",
            **_keystore(authority),
            "super.users": f"User:{ADMIN};User:ANONYMOUS",
        },
        users,
        _client(authority, ADMIN),
    )
    with pytest.MonkeyPatch.context() as patch:
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={tokens}/keys"
        patch.setenv("JAVA_TOOL_OPTIONS", f"{os.environ.get('JAVA_TOOL_OPTIONS', '')} {allowed}")
        kafka = EmbeddedKafka(folder / "kafka", access=access).start()
    try:
        yield SecuredKafka(kafka, authority, tokens)
    finally:
        kafka.stop()
