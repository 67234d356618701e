"""A sensor that waits until an hour of a pipeline is whole, by lagloss's own evidence rather than by the clock."""

from __future__ import annotations

import asyncio
import urllib.error
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any, Literal
from urllib.parse import quote, urlencode

from airflow.sdk import BaseSensorOperator
from airflow.sdk.exceptions import AirflowFailException
from airflow.triggers.base import BaseTrigger, TriggerEvent

from lagloss.airflow.facts import span_of
from lagloss.airflow.sender import PERMANENT, Collector

WhenLossy = Literal["wait", "run", "fail"]


class WholeSpanSensor(BaseSensorOperator):  # type: ignore[misc]
    """Wait until the hour that the run processes is whole.

    Args:
        pipeline: its name; the collector is that of LAGLOSS_COLLECTOR_URL, with LAGLOSS_COLLECTOR_TOKEN.
        node: as far as out of which node the messages have to have come; None: through the whole pipeline. A job names
            the node before its own.
        span: what a run without a data interval processes; as in the job of the pipeline's definition.
        when_lossy: what to do once nothing is waited for any more, and more is lost than the SLA allows: wait, as late
            data may still come, run, or fail at once.
        deferrable: wait in the triggerer, without a worker's slot.
    """

    template_fields = ("pipeline", "node")

    def __init__(
        self,
        *,
        pipeline: str,
        node: str | None = None,
        span: timedelta = timedelta(hours=1),
        when_lossy: WhenLossy = "wait",
        deferrable: bool = False,
        **named: Any,
    ) -> None:
        super().__init__(**named)
        self.pipeline = pipeline
        self.node = node
        self.span = span
        self.when_lossy = when_lossy
        self.deferrable = deferrable

    def poke(self, context: Any) -> bool:
        start, end = span_of(context["dag_run"], self.span)
        return self._judge(ask(self.pipeline, start, end, self.node))

    def execute(self, context: Any) -> Any:
        if not self.deferrable:
            return super().execute(context)
        if not self.poke(context):
            start, end = span_of(context["dag_run"], self.span)
            trigger = WholeSpanTrigger(
                self.pipeline, start.isoformat(), end.isoformat(), self.node, self.when_lossy, self.poke_interval
            )
            self.defer(trigger=trigger, method_name="execute_complete", timeout=timedelta(seconds=self.timeout))
        return None

    def execute_complete(self, context: Any, event: dict[str, Any]) -> None:
        """Continue after the trigger has found an end to the waiting."""
        self._judge(event)

    def _judge(self, answer: dict[str, Any]) -> bool:
        span = answer["from"], answer["to"]
        self.log.info("%s from %s to %s is %s: %s", self.pipeline, *span, answer["state"], answer["why"])
        if answer["state"] == "lossy" and self.when_lossy == "fail":
            raise AirflowFailException(f"{self.pipeline}: {answer['why']}")
        return is_over(answer, self.when_lossy)


class WholeSpanTrigger(BaseTrigger):  # type: ignore[misc]
    """Asks every `every_s` seconds until there is nothing to wait for."""

    def __init__(
        self, pipeline: str, start: str, end: str, node: str | None, when_lossy: WhenLossy, every_s: float
    ) -> None:
        super().__init__()
        self._given: dict[str, Any] = {
            "pipeline": pipeline,
            "start": start,
            "end": end,
            "node": node,
            "when_lossy": when_lossy,
            "every_s": every_s,
        }

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__qualname__}", dict(self._given)

    async def run(self) -> AsyncIterator[Any]:
        given_arguments = self._given
        start, end = (datetime.fromisoformat(given_arguments[name]) for name in ("start", "end"))
        while True:
            answer = await asyncio.to_thread(ask, given_arguments["pipeline"], start, end, given_arguments["node"])
            if is_over(answer, given_arguments["when_lossy"]) or (
                answer["state"] == "lossy" and given_arguments["when_lossy"] == "fail"
            ):
                yield TriggerEvent(answer)
                return
            await asyncio.sleep(given_arguments["every_s"])


def is_over(answer: dict[str, Any], when_lossy: WhenLossy) -> bool:
    """Return whether a job may begin."""
    return answer["state"] == "whole" or (answer["state"] == "lossy" and when_lossy == "run")


def ask(pipeline: str, start: datetime, end: datetime, node: str | None) -> dict[str, Any]:
    """Return the collector's answer; one that says `waiting` while it cannot be asked.

    Raises:
        AirflowFailException: no collector is named, or the question is refused: waiting changes nothing.
    """
    span = {"from": start.isoformat(), "to": end.isoformat()}
    collector = Collector.of_environment()
    if collector is None:
        raise AirflowFailException("LAGLOSS_COLLECTOR_URL is not set: expected the URL of a collector")
    path = f"/v1/pipelines/{quote(pipeline)}/whole?{urlencode({**span, **({'node': node} if node else {})})}"
    refused: urllib.error.HTTPError | None = None
    for token in collector.tokens:
        try:
            return collector.ask(path, token)
        except urllib.error.HTTPError as error:
            with error:
                if error.code in (401, 403):  # perhaps another token is the pipeline's
                    refused = error
                elif error.code in PERMANENT or error.code == 404:
                    raise AirflowFailException(f"{pipeline}: {error.read().decode(errors='replace')}") from error
                else:
                    return {**span, "state": "waiting", "why": str(error)}
        except OSError as error:
            return {**span, "state": "waiting", "why": str(error)}
    raise AirflowFailException(
        f"the collector rejects every token of LAGLOSS_COLLECTOR_TOKEN for {pipeline}: {refused}"
    )
