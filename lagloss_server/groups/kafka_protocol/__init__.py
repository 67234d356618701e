"""Messages of Kafka's protocol that kafka-python does not have: descriptions of groups of KIP-848, and of share groups.

The JSON files are Kafka's own, of its clients' jar (`common/message`), under its licence.
"""

from __future__ import annotations

import sys

from kafka.protocol.api_message import ApiMessage

_HERE = sys.modules[__name__]


class ConsumerGroupDescribeRequest(ApiMessage, load_json=_HERE):  # type: ignore[misc, call-arg]  # without types
    pass


class ConsumerGroupDescribeResponse(ApiMessage, load_json=_HERE):  # type: ignore[misc, call-arg]
    pass


class DescribeShareGroupOffsetsRequest(ApiMessage, load_json=_HERE):  # type: ignore[misc, call-arg]
    pass


class DescribeShareGroupOffsetsResponse(ApiMessage, load_json=_HERE):  # type: ignore[misc, call-arg]
    pass


class ShareGroupDescribeRequest(ApiMessage, load_json=_HERE):  # type: ignore[misc, call-arg]
    pass


class ShareGroupDescribeResponse(ApiMessage, load_json=_HERE):  # type: ignore[misc, call-arg]
    pass
