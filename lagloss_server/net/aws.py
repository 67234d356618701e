"""Clients of AWS by boto3, an extra: credentials, endpoints and regions are those of its own environment."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from lagloss_server.base.errors import AwsUnreachable, Boto3Missing

_AWS: Final = re.compile(r"https?://(?:sqs\.)?(?P<region>[a-z]{2}(?:-[a-z]+)+-\d)(?:\.queue)?\.amazonaws\.com")

MakeClient = Callable[[str, str | None], Any]
"""Makes a boto3 client of a service, in a region or in that of the environment."""


def region_of(url: str) -> str | None:
    """Return the region that a queue's address names; None for one of an emulator, say."""
    match = _AWS.match(url)
    return None if match is None else match["region"]


def boto3_clients(**options: Any) -> MakeClient:
    """Return boto3's own, with these options of botocore's `Config`.

    Raises:
        Boto3Missing
    """
    try:
        import boto3
        from botocore.config import Config
    except ImportError as error:
        raise Boto3Missing from error
    config = Config(**options)

    def make(service: str, region: str | None) -> Any:
        return boto3.client(service, region_name=region, config=config)

    return make


@contextmanager
def reaching_aws(what: str) -> Iterator[None]:
    """Raise AwsUnreachable for errors of boto3's, by the name of what was tried."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (BotoCoreError, ClientError) as error:
        raise AwsUnreachable(what=what, detail=error) from error


def status_of(error: BaseException | None) -> int:
    """Return the HTTP status of an answer of AWS that is an error; 0 for any other error."""
    answer = getattr(error, "response", None)
    status: int = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) if isinstance(answer, dict) else 0
    return status
