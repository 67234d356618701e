"""A producer's schema is tried before it writes: events that older readers could not read would all be dead."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline_under_test.stream.events.schema import NotReadable, SchemaReader, packaged, producers_schema
from pipeline_under_test.stream.nodes.col_service import create_app
from pipeline_under_test.stream.settings import ReferenceSettings

Change = Callable[[list[dict[str, Any]]], None]


def written(path: Path, change: Change) -> Path:
    """The packaged schema with its fields changed, in a file."""
    told = json.loads(packaged().text)
    change(told["fields"])
    path.write_text(json.dumps(told))
    return path


def without_url(fields: list[dict[str, Any]]) -> None:
    del fields[0]


def url_as_a_number(fields: list[dict[str, Any]]) -> None:
    fields[0]["type"] = "long"


def url_perhaps_a_number(fields: list[dict[str, Any]]) -> None:
    fields[0]["type"] = ["string", "long"]


def test_without_a_file_a_producer_writes_with_the_packaged_schema() -> None:
    assert producers_schema(None) is packaged()


def test_a_schema_one_field_ahead_is_taken_and_its_events_are_read(tmp_path: Path) -> None:
    more = {"name": "campaign", "type": ["null", "string"], "default": None}
    ahead = producers_schema(written(tmp_path / "ahead.avsc", lambda fields: fields.append(more)))
    body = ahead.encode({"url": "u", "kind": "k", "campaign": "spring"})
    assert SchemaReader(packaged(), {ahead.fingerprint: ahead}.get).decode(body)["url"] == "u"


def test_a_schema_without_a_field_that_readers_have_a_default_for_is_taken(tmp_path: Path) -> None:
    path = written(tmp_path / "fewer.avsc", lambda fields: fields.pop())
    body = producers_schema(path).encode({"url": "u", "kind": "k"})
    assert SchemaReader(packaged(), lambda fingerprint: producers_schema(path)).decode(body)["path"] is None


@pytest.mark.parametrize("change", [without_url, url_as_a_number, url_perhaps_a_number])
def test_a_schema_whose_events_could_not_be_read_is_refused_before_the_first_is_written(
    tmp_path: Path, change: Change
) -> None:
    path = written(tmp_path / "other.avsc", change)
    with pytest.raises(NotReadable, match=r"click\.avsc can read, found .*other\.avsc: .*with a default"):
        create_app(ReferenceSettings(data_dir=tmp_path, schema_path=path))


@pytest.mark.parametrize("text", [None, "", "[]", '{"type": "record"}', '{"type": "nonsense"}', '"string"'])
def test_a_file_that_holds_no_schema_of_events_is_refused(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "none.avsc"
    if text is not None:
        path.write_text(text)
    with pytest.raises(NotReadable, match=r"none\.avsc"):
        producers_schema(path)


def test_a_pipeline_is_not_started_with_such_a_schema(tmp_path: Path) -> None:
    path = written(tmp_path / "other.avsc", without_url)
    words = ["run", "--data-dir", str(tmp_path), "--bootstrap", "127.0.0.1:1", "--schema", str(path)]
    ended = subprocess.run(
        [sys.executable, "-m", "pipeline_under_test", *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith("expected a schema whose events click.avsc can read")
    assert "Traceback" not in ended.stderr
