"""The producer of a node: sends id and event time along, and a message's beacon once its record is acknowledged.

`lagloss.kafka.outputs` has which message a record belongs to; here are confluent_kafka's calls and delivery reports.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn

from confluent_kafka import KafkaError, Message, Producer

from lagloss.identity import Identity
from lagloss.kafka.in_flight import handling_now
from lagloss.kafka.outputs import Headers, NodeOutput, Outputs

if TYPE_CHECKING:
    from lagloss.kafka.node import KafkaNode

log = logging.getLogger("lagloss")

OnDelivery = Callable[[KafkaError | None, Message], Any]
POLL_S: Final = 0.1


class NodeProducer(Producer):
    """A confluent_kafka Producer; made by `KafkaNode.producer`.

    A record is an output of the message that this thread or task handles, or of `source`. Its delivery report sends the
    `out`; delivery reports are called in `poll` and `flush`, as ever, and in those of the node's consumers. In a
    transaction, its commit sends the `out`.
    """

    def __init__(
        self, node: KafkaNode, config: Mapping[str, Any], next_nodes: Mapping[str, str] | None, *, polls: bool
    ) -> None:
        self._outputs: Outputs[Message] = Outputs(
            node, next_nodes, is_transactional=bool(config.get("transactional.id"))
        )
        super().__init__(dict(config))
        self._node = node
        self._reporting: set[int] = set()
        """Threads that run the host's part of a delivery report."""
        self._is_stopping = threading.Event()
        if polls:
            threading.Thread(target=self._poll_on, name="lagloss-delivery-reports", daemon=True).start()

    def _poll_on(self) -> None:
        while not self._is_stopping.is_set():
            try:
                self.poll(POLL_S)
            except Exception:
                log.exception("lagloss: on_delivery raised")

    def poll(self, timeout: float | None = -1) -> int:
        """Poll as confluent_kafka does; within a delivery report, where the client's own would abort the process at the
        next report, do nothing. So `poll` and `close` of the node's consumers may be called there."""
        return 0 if threading.get_ident() in self._reporting else super().poll(timeout)

    def flush(self, timeout: float | None = -1) -> int:
        """Flush as confluent_kafka does; within a delivery report, do nothing, as `poll`."""
        return len(self) if threading.get_ident() in self._reporting else super().flush(timeout)

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Run the host's part of a delivery report in the block."""
        thread = threading.get_ident()
        self._reporting.add(thread)
        try:
            yield
        finally:
            self._reporting.discard(thread)

    def stop_polling(self) -> None:
        """Stop the polling thread."""
        self._is_stopping.set()

    def produce(  # type: ignore[override]  # more keywords than confluent_kafka's
        self,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = -1,
        callback: OnDelivery | None = None,
        on_delivery: OnDelivery | None = None,
        timestamp: int = 0,
        headers: Headers | None = None,
        *,
        source: Message | Identity | None = None,
        message_id: str | None = None,
        event_time_ms: int | None = None,
        dead_lettered: str | None = None,
    ) -> None:
        """Produce as confluent_kafka does, with the headers `lagloss-id` and `lagloss-event-time` added, and
        `lagloss-replay` for a replayed message.

        Args:
            source: the message that this is an output of; by default the one that this thread or task handles.
            message_id: at the first node, the id of a message that was not taken in; by default a fresh one. With
                `lagloss-replay` among `headers`, the record is part of that replay. Its trace is that of `traceparent`
                among them, else of OpenTelemetry's active span.
            event_time_ms: likewise its event time; by default now.
            dead_lettered: the reason, if the topic is a dead-letter queue; reported once the record is acknowledged.
        """
        output = self._outputs.begin(
            topic,
            value,
            headers,
            source=source,
            message_id=message_id,
            event_time_ms=event_time_ms,
            dead_lettered=dead_lettered,
        )
        host = on_delivery or callback
        try:
            super().produce(
                topic,
                value,
                key,
                partition,
                on_delivery=lambda error, record: self._report(output, host, error, record),
                timestamp=timestamp,
                headers=output.headers(headers) or None,
            )
        except BaseException:
            output.withdraw()
            raise
        output.accepted()  # only now: a full queue rejects the record, and the host retries

    def _report(self, output: NodeOutput, host: OnDelivery | None, error: KafkaError | None, record: Message) -> None:
        """Handle a delivery report.

        Records that the host produces in its own callback are outputs of the same message, and replace this one if it
        failed.
        """
        if error is not None:
            output.failed()
        else:
            output.arrived(lambda: self._node.key_of(record))
        try:
            if host is not None:
                with ExitStack() as stack:
                    stack.enter_context(self.reporting())
                    if len(output.handlings) == 1:
                        stack.enter_context(handling_now(output.handlings[0]))
                    host(error, record)
        finally:
            if error is None:
                output.acknowledged()

    # -- transactions, of a node that observes --------------------------------------------------------------------

    def begin_transaction(self) -> None:
        """Begin a transaction as confluent_kafka does."""
        super().begin_transaction()
        self._outputs.begin_transaction()

    def commit_transaction(self, *arguments: Any, **options: Any) -> None:
        """Commit the transaction as confluent_kafka does; its messages are out once this has succeeded."""
        super().commit_transaction(*arguments, **options)
        self._outputs.end_transaction(is_committed=True)

    def abort_transaction(self, *arguments: Any, **options: Any) -> None:
        """Abort the transaction as confluent_kafka does; its messages are not out, and stay in flight."""
        super().abort_transaction(*arguments, **options)
        self._outputs.end_transaction(is_committed=False)

    def produce_batch(self, *_arguments: Any, **_options: Any) -> NoReturn:
        """Raise NotImplementedError: confluent_kafka's batches have no headers, in which id and event time travel."""
        raise NotImplementedError("use produce(): produce_batch() cannot send the headers for id and event time")
