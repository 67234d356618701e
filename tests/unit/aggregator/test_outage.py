"""Whose trouble it is, and since when."""

from __future__ import annotations

import errno

import psycopg
import pytest
from confluent_kafka import KafkaError, KafkaException
from psycopg import errors
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import IllegalArgumentException, SparkRuntimeException
from sqlalchemy.exc import DataError, DBAPIError, InternalError, OperationalError, ProgrammingError

from aggregator.metrics import AggregatorMetrics
from aggregator.outage import DatabaseRestored, Outage, is_outage, outage_of

READ = "Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times: "


@pytest.mark.parametrize(
    ("error", "server"),
    [
        (OperationalError("SELECT 1", {}, psycopg.OperationalError("connection refused")), "postgresql"),
        (DatabaseRestored("PostgreSQL knows reports up to {}"), "postgresql"),
        (KafkaException(KafkaError(KafkaError._TIMED_OUT)), "kafka"),
        (SparkRuntimeException(READ + "org.apache.kafka.common.errors.TimeoutException"), "kafka"),
        (ConnectionRefusedError("py4j"), "spark"),
        (Py4JNetworkError("Answer from Java side is empty"), "spark"),
        (Py4JError("An error occurred while calling o66.collectToPython"), "spark"),
        (IllegalArgumentException("Cannot call methods on a stopped SparkContext."), "spark"),
        (SparkRuntimeException(READ + "java.io.IOException: No space left on device"), "spark"),
        (SparkRuntimeException("[SPARK_JOB_CANCELLED] Job 5 cancelled as part of cancellation of all jobs"), "spark"),
        (SparkRuntimeException(READ + "java.io.IOException: Disk quota exceeded"), "spark"),
        (SparkRuntimeException(READ + "java.io.FileNotFoundException: /x (Read-only file system)"), "spark"),
    ],
)
def test_an_error_is_some_servers_trouble(error: Exception, server: str) -> None:
    assert is_outage(error)
    assert outage_of(error, 0).server == server


def of_postgresql(kind: type[DBAPIError], error: Exception) -> DBAPIError:
    return kind("INSERT", {}, error)


@pytest.mark.parametrize(
    "error",
    [
        of_postgresql(OperationalError, errors.DeadlockDetected()),
        of_postgresql(OperationalError, errors.SerializationFailure()),
        of_postgresql(OperationalError, errors.LockNotAvailable()),
        of_postgresql(OperationalError, errors.QueryCanceled()),
        of_postgresql(OperationalError, errors.DiskFull()),
        of_postgresql(OperationalError, errors.AdminShutdown()),
        of_postgresql(OperationalError, errors.IdleSessionTimeout()),
        of_postgresql(InternalError, errors.IdleInTransactionSessionTimeout()),
        of_postgresql(InternalError, errors.ReadOnlySqlTransaction()),
        of_postgresql(ProgrammingError, errors.UndefinedTable()),
        OSError(errno.ENOSPC, "No space left on device"),
    ],
    ids=lambda error: type(getattr(error, "orig", error)).__name__,
)
def test_what_passes_by_itself_is_waited_for(error: Exception) -> None:
    assert is_outage(error)


@pytest.mark.parametrize(
    "error",
    [
        of_postgresql(DataError, psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")),
        of_postgresql(DataError, errors.NumericValueOutOfRange()),
        of_postgresql(DataError, errors.UntranslatableCharacter()),
        of_postgresql(OperationalError, errors.ProgramLimitExceeded()),
        of_postgresql(ProgrammingError, errors.SyntaxError()),
        SparkRuntimeException(READ + "AttributeError: 'NoneType' object has no attribute 'x'"),
        SparkRuntimeException(READ + "org.apache.kafka.common.errors.CorruptRecordException: crc"),
        IndexError("index 0 is out of bounds"),
        OverflowError("Python integer out of bounds"),
    ],
    ids=lambda error: type(getattr(error, "orig", error)).__name__,
)
def test_what_fails_again_in_the_same_way_is_no_outage(error: Exception) -> None:
    assert not is_outage(error)


def test_of_a_long_message_the_cause_is_told() -> None:
    told = READ + "java.lang.Exception\n\tat x\norg.apache.kafka.common.errors.TimeoutException: no answer\n more"
    cause = "org.apache.kafka.common.errors.TimeoutException: no answer"
    assert outage_of(SparkRuntimeException(told), 0).text == cause


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
