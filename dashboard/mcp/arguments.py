"""Arguments of tools, checked: an error says what was expected, for a model to correct itself."""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import islice
from math import ceil
from typing import Annotated, Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lagloss.errors import UsageError
from lagloss.wire.format import window_start_of
from lagloss_server.base.errors import BadSpan
from lagloss_server.base.fields import Name, Text
from lagloss_server.base.invalid import explain
from lagloss_server.base.times import parse_time_s
from lagloss_server.model.time_range import TimeRange
from lagloss_server.model.window import Verdict

DAY_S: Final = 86_400
MAX_RANGE_S: Final = 800 * DAY_S
_MAX_PROBLEMS: Final = 5
"""Problems that one error names."""

Pipeline = Annotated[Name, Field(description="name of the pipeline")]
Moment = Annotated[Text, Field(min_length=1, max_length=100)]
FROM: Final = "start of the range: RFC 3339 (2026-11-21T08:40:00Z) or relative (-2h, -7d)"
TO: Final = "end of the range, exclusive: RFC 3339, relative or now"
MessageId = Annotated[
    Text, Field(min_length=1, max_length=255, description="id of the message, or the id's hash in 16 hex digits")
]


class Arguments(BaseModel):
    """Arguments of a tool; unknown ones are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def parse(cls, given: Mapping[str, object]) -> Self:
        """Return the checked arguments.

        Raises:
            UsageError: with what was expected of each, and what was found.
        """
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            problems = islice(explain(error, given, cls), _MAX_PROBLEMS)
            raise UsageError(detail=f"Bad arguments. {'; '.join(map(str, problems))}") from error


class Matching(Arguments):
    text: Annotated[Text, Field(max_length=200)] = Field(
        "", description="part of a name or description, case-insensitive; by default all pipelines"
    )


class OptionalPipeline(Arguments):
    pipeline: Pipeline | None = None


class Ranged(Arguments):
    """Arguments with a time range."""

    from_: Moment | None = Field(None, alias="from", description=FROM)
    to: Moment | None = Field(None, description=f"{TO} (default)")

    def time_range(self, default_from: str, longest_s: int = MAX_RANGE_S) -> TimeRange:
        """Return the range on whole seconds.

        Raises:
            BadTime, BadSpan: a bound is not a time, or the range is empty or too long.
        """
        now_s, from_, to = time.time(), self.from_ or default_from, self.to or "now"
        bounds = TimeRange(ceil(parse_time_s(from_, now_s)), ceil(parse_time_s(to, now_s)))
        if not 0 < bounds.length_s <= longest_s:
            longest = f"{longest_s // DAY_S} days" if longest_s > DAY_S else "24 hours"
            raise BadSpan(text=f"{from_} to {to}", expected=f"`from` before `to`, and at most {longest} between them")
        return bounds


class PipelineRange(Ranged):
    pipeline: Pipeline


class WindowRange(PipelineRange):
    verdict: Verdict | None = Field(None, description="only windows with this verdict")


class OptionalPipelineRange(Ranged):
    pipeline: Pipeline | None = None


class OneWindow(Arguments):
    pipeline: Pipeline
    window: Moment = Field(description="any time within the window, a minute: RFC 3339 or relative (-15m)")

    @property
    def start_s(self) -> int:
        """The window's start, in epoch seconds. Raises BadTime."""
        return start_of(self.window)


class OneMessage(Arguments):
    pipeline: Pipeline
    message_id: MessageId
    window: Moment | None = Field(None, description="a time near the message's event time: search there first")
    from_: Moment | None = Field(None, alias="from", description="only windows that start then or later")
    to: Moment | None = Field(None, description="only windows that start before")


def start_of(moment: str) -> int:
    """Return the start (epoch s) of the window that a time is in. Raises BadTime."""
    return window_start_of(parse_time_s(moment) * 1_000)
