"""Extraction: message ids and event times of Kafka records, by columns, without Kafka."""

from taps.extraction.extractor import Extractor
from taps.extraction.formats import BadTapSchema
from taps.extraction.protobuf_schema import ProtobufCompilerMissing
from taps.extraction.reasons import REASONS, Reason
from taps.extraction.spec import BROKEN_HEADERS, FORMATS, Extracted, Extraction, Format, Records

__all__ = (
    "BROKEN_HEADERS", "FORMATS", "REASONS", "BadTapSchema", "Extracted", "Extraction", "Extractor", "Format",
    "ProtobufCompilerMissing", "Reason", "Records",
)  # fmt: skip
