"""Two teams and the dashboard that serves them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import schemathesis
from schemathesis.core.media_types import YAML_MEDIA_TYPES

from lagloss_server.store.store import Store
from tests.support.teams_world import TeamsWorld, dashboard_of, seed


@schemathesis.deserializer(*YAML_MEDIA_TYPES)
def text_of(_context: object, response: schemathesis.Response) -> str:
    """Declared as a text: Schemathesis itself reads one document of YAML, and OpenSLO is several."""
    return response.text


@pytest.fixture(scope="module")
def world(module_database_url: str, kafka_bootstrap: str) -> Iterator[TeamsWorld]:
    store = Store(module_database_url)
    yield seed(store, kafka_bootstrap)
    store.close()


@pytest.fixture(scope="module")
def url(world: TeamsWorld, kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with dashboard_of(world, kafka_bootstrap, tmp_path_factory.mktemp("teams")) as url:
        yield url
