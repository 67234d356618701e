"""Extraction: message ids and event times of Kafka records, by columns, without Kafka.

Importing it raises NumbaMissing where numba is not installed.
"""

from lagloss_server.base.errors import NumbaMissing

try:
    from lagloss_server.extraction.extractor import Extractor
except ModuleNotFoundError as error:
    if error.name != "numba":
        raise
    raise NumbaMissing from None
from lagloss_server.extraction.formats import BadTapSchema
from lagloss_server.extraction.protobuf_schema import ProtobufCompilerMissing
from lagloss_server.extraction.reasons import REASONS, Reason
from lagloss_server.extraction.spec import BROKEN_HEADERS, FORMATS, Extracted, Extraction, Format, Records

__all__ = (
    "BROKEN_HEADERS", "FORMATS", "REASONS", "BadTapSchema", "Extracted", "Extraction", "Extractor", "Format",
    "ProtobufCompilerMissing", "Reason", "Records",
)  # fmt: skip
