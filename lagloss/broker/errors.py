"""Errors of Kafka's client: the one that an exception carries, and why a broker refuses who asks.

Of a wrong password, or a certificate that it does not trust, librdkafka's answers say no more than "timed out"; the
reason comes to the client's `error_cb` alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from lagloss.broker.connection import Cluster, KafkaConnection
from lagloss.errors import KafkaRefuses, KafkaUnreachable

NOT_LET_IN: Final = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.ILLEGAL_SASL_STATE,
    }
)
"""Codes of a broker, or of the client about a broker, that does not accept who asks."""
NOT_ALLOWED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
"""Codes of a broker that misses an ACL."""
NOT_SUPPORTED: Final = frozenset(
    {KafkaError.UNSUPPORTED_VERSION, KafkaError.INVALID_REQUEST, KafkaError._UNSUPPORTED_FEATURE}
)
"""Codes of a broker, or of the client about a broker, that does not know a request."""
_NO_ANSWER: Final = frozenset({KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN})
_UNKNOWN: Final = frozenset(
    {KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART}
)
_STALE: Final = frozenset(
    {
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError._UNKNOWN_PARTITION,
    }
)


def has_stale_metadata(error: KafkaException) -> bool:
    """Return whether a client does not know a partition's leader: it has another one by now, or again the same one, or
    its topic was widened.

    An AdminClient has to learn that by `list_topics(topic)`: librdkafka (2.16) asks for leaders for consumers and
    producers, and `list_offsets` fails with what it knows for minutes, or for ever."""
    return kafka_error(error).code() in _STALE


def kafka_error(error: KafkaException) -> KafkaError:
    """Return the error that a client's exception carries."""
    cause = error.args[0]
    return cause if isinstance(cause, KafkaError) else KafkaError(KafkaError._FAIL, str(cause))


class BrokerRefusals:
    """Keeps why no broker takes a client's connection, until one does. `take` is the client's `error_cb`."""

    def __init__(self) -> None:
        self._latest: KafkaError | None = None

    def take(self, error: KafkaError) -> None:
        """Keep an error, except that all brokers are down: why, the one before it says."""
        if error.code() in NOT_LET_IN or error.code() == KafkaError._TRANSPORT:
            self._latest = error

    def forget(self) -> None:
        """Note that a broker has answered."""
        self._latest = None

    @property
    def is_certain(self) -> bool:
        """A broker answered, and does not accept who asks."""
        return self._latest is not None and self._latest.code() in NOT_LET_IN

    def explain(self, error: KafkaError) -> KafkaError:
        """Return the reason where an error says no more than that no broker answered."""
        return self._latest if self._latest is not None and error.code() in _NO_ANSWER else error


def needs(error: KafkaError, operation: str, topic: str) -> KafkaError:
    """Return an error that an ACL is missing with what it has to allow; any other as it is.

    A topic that may not be described looks as one that does not exist.
    """
    if error.code() in NOT_ALLOWED:
        return KafkaError(error.code(), f"{operation} on {topic} is not allowed: an ACL is missing")
    if error.code() in _UNKNOWN:
        return KafkaError(error.code(), f"{topic} does not exist, or an ACL for DESCRIBE on it is missing")
    return error


def is_of_group(error: KafkaError) -> bool:
    """Return whether an error means nothing to a consumer that takes part in no group: the client demands a `group.id`,
    and looks for its coordinator at once."""
    return error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED


@contextmanager
def reaching(cluster: Cluster) -> Iterator[None]:
    """Run a block that asks this cluster for a command. Raises KafkaUnreachable, or KafkaRefuses, for it."""
    try:
        yield
    except KafkaException as error:
        raise unreachable(cluster, kafka_error(error)) from error


def unreachable(cluster: Cluster, error: KafkaError) -> KafkaUnreachable:
    """Return the error that ends a command: Kafka does not answer, or it refuses who asks."""
    connection = KafkaConnection.of(cluster)
    if error.code() in NOT_LET_IN | NOT_ALLOWED:
        return KafkaRefuses(bootstrap=connection, who=connection.who, detail=error.str())
    return KafkaUnreachable(bootstrap=connection, detail=error.str())
