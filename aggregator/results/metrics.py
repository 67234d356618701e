"""The metrics of results: one table, from which /metrics, the OTLP push and docs/metrics.md are made.

All are of the newest closed window of a pipeline, whose start is one of them, and all are gauges: a window that is
closed again replaces its values. A counter could not take back what an earlier revision had added to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from lagloss_server.base import format as fmt
from lagloss_server.model.definition import Sla
from lagloss_server.model.window import Interval, ListedWindow, LossRatio, Verdict
from lagloss_server.queries.budgets import Budgets

Kind = Literal["gauge", "stateset"]
Sample = tuple[tuple[str, ...], float]
"""Values of the labels after `pipeline`, and the value."""
PERCENTILES: Final = ("p50", "p95", "p99", "max")


@dataclass(frozen=True)
class PipelineResult:
    """The newest closed window of a pipeline, its error budgets and its targets."""

    window: ListedWindow
    budgets: Budgets
    sla: Sla


@dataclass(frozen=True)
class ResultMetric:
    """A row of the table. `labels`: those after `pipeline`; values that are not known give no sample."""

    name: str
    text: str
    labels: tuple[str, ...]
    read: Callable[[PipelineResult], Iterator[tuple[tuple[str, ...], float | None]]]
    kind: Kind = "gauge"

    @property
    def is_detail(self) -> bool:
        """It has a sample for each destination, node, link or checkpoint."""
        return bool({"destination", "node", "source", "checkpoint"}.intersection(self.labels))

    def samples(self, result: PipelineResult) -> Iterator[Sample]:
        """Return the samples of one pipeline."""
        return ((labels, float(value)) for labels, value in self.read(result) if value is not None)


_Row = Any
"""A window, or one of its destinations, nodes or links."""
_Read = Callable[[_Row], Iterator[tuple[tuple[str, ...], float | None]]]


def _one(read: Callable[[_Row], float | None]) -> _Read:
    return lambda row: iter([((), read(row))])


def _field(name: str, scale: float = 1.0) -> _Read:
    return _one(lambda row: None if (value := getattr(row, name)) is None else value * scale)


def _bounds(read: Callable[[_Row], Interval | LossRatio | None]) -> _Read:
    return lambda row: iter([((bound,), getattr(read(row), bound, None)) for bound in ("min", "max")])


def _percentiles(name: str) -> _Read:
    def read(row: _Row) -> Iterator[tuple[tuple[str, ...], float | None]]:
        for percentile in PERCENTILES:
            value = getattr(getattr(row, name), percentile, None)  # most have no max
            yield (percentile,), None if value is None else value / 1_000

    return read


def _of_window(read: _Read) -> Callable[[PipelineResult], Iterator[tuple[tuple[str, ...], float | None]]]:
    return lambda result: read(result.window)


def _each(rows: str, names: tuple[str, ...], read: _Read) -> Callable[[PipelineResult], Any]:
    """Read each row of a list in the window, labelled with these fields of it."""

    def samples(result: PipelineResult) -> Iterator[tuple[tuple[str, ...], float | None]]:
        for row in getattr(result.window, rows):
            place = tuple(str(getattr(row, name)) for name in names)
            yield from (((*place, *labels), value) for labels, value in read(row))

    return samples


def _destinations(read: _Read) -> Callable[[PipelineResult], Any]:
    return _each("destinations", ("name",), read)


def _nodes(read: _Read) -> Callable[[PipelineResult], Any]:
    return _each("nodes", ("name",), read)


def _links(read: _Read) -> Callable[[PipelineResult], Any]:
    return _each("links", ("source", "target"), read)


def _verdicts(result: PipelineResult) -> Iterator[tuple[tuple[str, ...], float]]:
    return (((verdict,), float(result.window.verdict == verdict)) for verdict in get_args(Verdict))


def _budgets_left(result: PipelineResult) -> Iterator[tuple[tuple[str, ...], float | None]]:
    for objective, budget in result.budgets.items():
        share = None if budget is None else budget.left
        for bound in ("min", "max"):
            yield (objective, bound), None if share is None else getattr(share, bound)


def _lag_target(result: PipelineResult) -> Iterator[tuple[tuple[str, ...], float | None]]:
    lag = result.sla.lag
    yield (fmt.percentile(lag.percentile),), lag.target / 1_000


def _staleness(result: PipelineResult) -> Iterator[tuple[tuple[str, ...], float | None]]:
    return (((name,), stale_ms / 1_000) for name, stale_ms in result.window.staleness_ms.items())


_DESTINATION: Final = ("destination",)
_NODE: Final = ("node",)
_LINK: Final = ("source", "target")
_BOUND: Final = ("bound",)
_PERCENTILE: Final = ("percentile",)

RESULTS: Final = (
    ResultMetric(
        "lagloss_window_start_timestamp_seconds",
        "Start of the newest closed window, in seconds since the epoch",
        (),
        _of_window(_field("start_s")),
    ),
    ResultMetric(
        "lagloss_window_revision",
        "Times that closing the window again changed its result",
        (),
        _of_window(_field("revision")),
    ),
    ResultMetric("lagloss_window_verdict", "1 for the verdict of the window", ("verdict",), _verdicts, kind="stateset"),
    ResultMetric("lagloss_window_messages", "Messages in the window", (), _of_window(_field("messages"))),
    ResultMetric("lagloss_window_delivered_messages", "Messages delivered", (), _of_window(_field("delivered"))),
    ResultMetric(
        "lagloss_window_lost_messages",
        "Messages lost: proven losses (min), and losses that cannot be ruled out (max)",
        _BOUND,
        _of_window(_bounds(lambda row: row.lost)),
    ),
    ResultMetric(
        "lagloss_window_loss_ratio",
        "Lost messages as a share of all",
        _BOUND,
        _of_window(_bounds(lambda row: row.loss_ratio)),
    ),
    ResultMetric(
        "lagloss_window_pending_messages", "Messages that are late, not lost", (), _of_window(_field("pending"))
    ),
    ResultMetric("lagloss_window_dead_messages", "Dead-lettered messages", (), _of_window(_field("dead"))),
    ResultMetric(
        "lagloss_window_filtered_messages", "Messages filtered on purpose", (), _of_window(_field("filtered"))
    ),
    ResultMetric(
        "lagloss_window_on_time_ratio",
        "Share of messages delivered within the lag target",
        (),
        _of_window(_field("on_time_share")),
    ),
    ResultMetric(
        "lagloss_window_e2e_lag_seconds",
        "End-to-end lag at delivery, over all destinations",
        _PERCENTILE,
        _of_window(_percentiles("e2e_lag_ms")),
    ),
    ResultMetric(
        "lagloss_error_budget_left_ratio",
        "Remaining share of the 30-day error budget, lower (min) and upper bound (max); negative if overspent",
        ("objective", "bound"),
        _budgets_left,
    ),
    ResultMetric(
        "lagloss_sla_loss_max_ratio",
        "Target: the highest share of messages that can be lost",
        (),
        lambda result: iter([((), result.sla.loss.max)]),
    ),
    ResultMetric(
        "lagloss_sla_lag_target_seconds",
        "Target for this percentile of the end-to-end lag",
        ("percentile",),
        _lag_target,
    ),
    ResultMetric(
        "lagloss_destination_due_messages",
        "Messages due at the destination",
        _DESTINATION,
        _destinations(_field("messages")),
    ),
    ResultMetric(
        "lagloss_destination_delivered_messages",
        "Messages delivered to the destination",
        _DESTINATION,
        _destinations(_field("delivered")),
    ),
    ResultMetric(
        "lagloss_destination_lost_messages",
        "Messages due at the destination that were lost",
        (*_DESTINATION, *_BOUND),
        _destinations(_bounds(lambda row: row.lost)),
    ),
    ResultMetric(
        "lagloss_destination_loss_ratio",
        "Lost messages as a share of those due at the destination",
        (*_DESTINATION, *_BOUND),
        _destinations(_bounds(lambda row: row.loss_ratio)),
    ),
    ResultMetric(
        "lagloss_destination_pending_messages",
        "Messages due at the destination that are late",
        _DESTINATION,
        _destinations(_field("pending")),
    ),
    ResultMetric(
        "lagloss_destination_dead_messages",
        "Messages due at the destination that were dead-lettered",
        _DESTINATION,
        _destinations(_field("dead")),
    ),
    ResultMetric(
        "lagloss_destination_filtered_messages",
        "Messages due at the destination that were filtered on purpose",
        _DESTINATION,
        _destinations(_field("filtered")),
    ),
    ResultMetric(
        "lagloss_destination_on_time_ratio",
        "Share of messages delivered to the destination within its lag target",
        _DESTINATION,
        _destinations(_field("on_time_share")),
    ),
    ResultMetric(
        "lagloss_destination_e2e_lag_seconds",
        "Lag of each message's first arrival at the destination",
        (*_DESTINATION, *_PERCENTILE),
        _destinations(_percentiles("e2e_lag_ms")),
    ),
    ResultMetric(
        "lagloss_node_lost_messages",
        "Messages lost inside the node",
        (*_NODE, *_BOUND),
        _nodes(_bounds(lambda row: row.lost)),
    ),
    ResultMetric(
        "lagloss_node_evidence_complete",
        "1 if the node's evidence is complete, else 0",
        _NODE,
        _nodes(_field("complete")),
    ),
    ResultMetric(
        "lagloss_node_added_lag_seconds",
        "Process duration: p95 of the lag out - p95 of the lag in. Adds up with the queue times of the links",
        _NODE,
        _nodes(_field("process_duration_p95_ms", 0.001)),
    ),
    ResultMetric(
        "lagloss_node_process_duration_seconds",
        "Process duration per message (sample: 1 in 16 ids)",
        (*_NODE, *_PERCENTILE),
        _nodes(_percentiles("process_duration_ms")),
    ),
    ResultMetric(
        "lagloss_link_lost_messages",
        "Messages lost on the link",
        (*_LINK, *_BOUND),
        _links(_bounds(lambda row: row.lost)),
    ),
    ResultMetric(
        "lagloss_link_corrupted_messages",
        "Messages that arrived with a changed payload",
        _LINK,
        _links(_field("corrupted")),
    ),
    ResultMetric(
        "lagloss_link_checked_messages",
        "Messages with payload checksums on both sides",
        _LINK,
        _links(_field("checked")),
    ),
    ResultMetric(
        "lagloss_link_added_lag_seconds",
        "Queue time: p95 of the lag in - p95 of the lag out of the previous node",
        _LINK,
        _links(_field("queue_time_p95_ms", 0.001)),
    ),
    ResultMetric(
        "lagloss_link_queue_time_seconds",
        "Queue time per message (sample: 1 in 16 ids)",
        (*_LINK, *_PERCENTILE),
        _links(_percentiles("queue_time_ms")),
    ),
    ResultMetric(
        "lagloss_checkpoint_staleness_seconds",
        "Age of the newest event at the checkpoint, at the end of the window",
        ("checkpoint",),
        _staleness,
    ),
)
