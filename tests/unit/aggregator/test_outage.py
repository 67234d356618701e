"""Whose trouble it is, and since when."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException
from pyspark.errors import StreamingQueryException
from sqlalchemy.exc import OperationalError

from aggregator.metrics import AggregatorMetrics
from aggregator.outage import TRANSIENT, Outage, outage_of
from aggregator.reports.consumer import DatabaseRestored

STREAM = "[STREAM_FAILED] Query [id = 1] terminated with exception: "


@pytest.mark.parametrize(
    ("error", "server"),
    [
        (OperationalError("SELECT 1", {}, Exception("connection refused")), "postgresql"),
        (DatabaseRestored("PostgreSQL knows reports up to {}"), "postgresql"),
        (KafkaException(KafkaError(KafkaError._TIMED_OUT)), "kafka"),
        (StreamingQueryException(STREAM + "org.apache.kafka.common.errors.TimeoutException"), "kafka"),
        (StreamingQueryException(STREAM + "(psycopg.OperationalError) connection refused"), "postgresql"),
        (
            StreamingQueryException(STREAM + "aggregator.reports.consumer.DatabaseRestored: PostgreSQL knows"),
            "postgresql",
        ),
        (ConnectionRefusedError("py4j"), "spark"),
    ],
)
def test_an_error_is_some_servers_trouble(error: Exception, server: str) -> None:
    assert isinstance(error, TRANSIENT)
    assert outage_of(error, 0).server == server


def test_of_a_long_message_the_cause_is_told() -> None:
    told = STREAM + "Traceback:\n  File x\nsqlalchemy.exc.OperationalError: (psycopg.OperationalError) refused\n more"
    assert outage_of(StreamingQueryException(told), 0).text == (
        "sqlalchemy.exc.OperationalError: (psycopg.OperationalError) refused"
    )


def test_trouble_with_one_server_lasts_since_its_first_error() -> None:
    first = Outage("kafka", "timed out", 1_780_000_020)
    second = Outage("kafka", "refused", 1_780_000_050).lasting(first)
    assert str(second) == "waiting for kafka since 2026-05-28T20:27:00Z: refused"
    assert Outage("postgresql", "refused", 1_780_000_090).lasting(second).since_s == 1_780_000_090


def test_the_metric_tells_how_long_it_waits_and_for_what() -> None:
    metrics, trouble = AggregatorMetrics(), [Outage("kafka", "timed out", 0)]
    metrics.waiting(lambda: trouble[0] if trouble else None)

    def waiting(server: str) -> float | None:
        return metrics.registry.get_sample_value("lagloss_waiting_seconds", {"server": server})

    assert (waiting("kafka") or 0) > 1_780_000_000
    assert waiting("postgresql") == 0
    trouble.clear()
    assert waiting("kafka") == 0
