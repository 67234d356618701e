"""What OTLP's response says of the spans that cannot be used: how many, why, and which was the first."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final, TypedDict

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from collector.spans.otlp import JSON, SentSpan

MAX_SHOWN: Final = 100
"""Characters of a span's name in an answer; a reason has five times as many."""
INVALID: Final = "not a valid beacon"


class UnusableSpan(ValueError):
    """A span that cannot be used; `reason` is the one to count, the text has what is special about this span."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(detail or reason)
        self.reason = reason


@dataclass(slots=True)
class Rejected:
    """The spans that cannot be used: their number by reason, and the error of the first."""

    reasons: Counter[str] = field(default_factory=Counter)
    first: str = ""

    @property
    def spans(self) -> int:
        return self.reasons.total()

    def add(self, span: SentSpan, why: str, reason: str = INVALID) -> None:
        self.reasons[reason] += 1
        self.first = self.first or f"span {span.name[:MAX_SHOWN]!r}: {why[: MAX_SHOWN * 5]}"

    def message(self) -> str:
        """Return what was rejected, as one sentence for a log."""
        counts = "; ".join(f"{number} {reason}" for reason, number in self.reasons.most_common())
        return f"rejected {self.spans} spans: {counts}. The first: {self.first}"


class PartialSuccess(TypedDict, total=False):
    """How many spans were rejected, as protobuf writes a 64-bit number in JSON, and why."""

    rejectedSpans: str
    errorMessage: str


class ExportResponse(TypedDict, total=False):
    """OTLP's response in JSON."""

    partialSuccess: PartialSuccess


def write_response(rejected: Rejected, media_type: str) -> bytes:
    """OTLP's answer, in the encoding of the request."""
    response = ExportTraceServiceResponse()
    if rejected.spans:
        response.partial_success.rejected_spans = rejected.spans
        response.partial_success.error_message = rejected.message()
    if media_type == JSON:
        return str(json_format.MessageToJson(response, indent=None)).encode()
    return bytes(response.SerializeToString())
