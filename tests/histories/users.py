"""Users who apply definitions and silence incidents while faults happen. What was acknowledged is written down."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from itertools import count
from typing import Final

import httpx2
from sqlalchemy import select

from lagloss_server.model.definition import parse_definition
from lagloss_server.store import tokens
from lagloss_server.store.schema.alerting import SilenceRow
from lagloss_server.store.schema.audit import AuditTrailRow
from lagloss_server.store.schema.core import PipelineRow
from lagloss_server.store.store import Store
from tests.histories.cluster import PROXY, Cluster

EVERY_S: Final = 5.0
TIMEOUT_S: Final = 10.0


class Users:
    """`acknowledged`: actions, and when the answer came (epoch s)."""

    def __init__(self, cluster: Cluster, pipeline: str) -> None:
        self.acknowledged: dict[str, float] = {}
        self._cluster, self._pipeline = cluster, pipeline
        cluster.store.apply(parse_definition(_definition(pipeline, -1)))
        self._token = tokens.create(cluster.store, pipeline, "admin")[1]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        for number in count():
            if self._over.wait(EVERY_S):
                return
            for action in (self._apply, self._silence):
                with suppress(httpx2.HTTPError):
                    action(number)

    def _apply(self, number: int) -> None:
        name = self._pipeline
        answer = self._cluster.client.put(
            f"{self._cluster.url('col')}/v1/pipelines/{name}",
            content=_definition(name, number),
            headers={"Content-Type": "application/yaml", "Authorization": f"Bearer {self._token}"},
            timeout=TIMEOUT_S,
        )
        if answer.status_code == 201:
            self.acknowledged[f"apply {name} {answer.json()['version']}"] = time.time()

    def _silence(self, number: int) -> None:
        answer = self._cluster.client.post(
            f"{self._cluster.url('dash')}/api/v1/silences",
            json={"matchers": [f"pipeline=none-{number}"], "duration": "60s", "reason": "a test", "author": "ann"},
            headers=PROXY,
            timeout=TIMEOUT_S,
        )
        if answer.status_code == 201:
            self.acknowledged[f"silence {answer.json()['id']}"] = time.time()


def _definition(name: str, number: int) -> str:
    head = f"apiVersion: lagloss/v1\nkind: Pipeline\nmetadata: {{name: {name}, labels: {{number: '{number}'}}}}\n"
    return head + "spec: {nodes: [{name: a}], alerts: {blind: off, staleness: off}}\n"


def stored_actions(store: Store) -> set[str]:
    """Return the actions that are in the tables: silences only with their entry in the audit trail."""
    with store.engine.connect() as connection:
        versions = connection.execute(select(PipelineRow.name, PipelineRow.version)).all()
        silences = set(connection.execute(select(SilenceRow.id)).scalars())
        audited = set(connection.execute(select(AuditTrailRow.object)).scalars())
    return {f"apply {name} {version}" for name, version in versions} | {f"silence {id_}" for id_ in silences & audited}
