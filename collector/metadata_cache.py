"""Cache of the tokens and definitions in PostgreSQL, refreshed every two seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog
from sqlalchemy.exc import SQLAlchemyError

from lagloss_server.model.definition import StoredPipeline
from lagloss_server.model.spans import SpanPoint
from lagloss_server.store import tokens
from lagloss_server.store.definition_feed import DefinitionFeed
from lagloss_server.store.store import Store
from lagloss_server.store.tokens import Token
from lagloss_server.store.unreadable import UnreadableRow, UnreadableRows

log = structlog.get_logger()

REFRESH_S: Final = 2.0
ASK_AGAIN_S: Final = 0.25
"""An unknown token or pipeline is looked up at once, but all of them together not more often than this."""
ANSWER_S: Final = 10.0
"""How long a request waits for the database."""
TRUSTED_S: Final = 600.0
"""While PostgreSQL is away, the cached content is valid for this long, in seconds."""
STALE_S: Final = 10.0
"""From this age on, in seconds, /healthz fails: a token that was revoked meanwhile still holds."""


SpanSource = tuple[str, str, bool]
"""A service and a topic, and whether it produces to it, or consumes."""


@dataclass(frozen=True, slots=True)
class KnownPipeline:
    """A pipeline in its newest version; `checkpoints` are those of all readable versions together."""

    name: str
    version: int
    sources: frozenset[str]
    checkpoints: frozenset[str]
    nodes: frozenset[str]
    sample: int
    dags: frozenset[str] = frozenset()
    """Of the jobs that it names."""
    span_points: tuple[SpanPoint, ...] = ()
    """The spans of Kafka clients that are its beacons."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The database's answer of one moment (`taken_at`, monotonic seconds)."""

    taken_at: float
    tokens: Mapping[str, Token] = field(default_factory=dict)
    """Valid tokens, by id."""
    guarded: frozenset[str] = frozenset()
    """Pipelines that have, or ever had, a token."""
    pipelines: Mapping[str, KnownPipeline] = field(default_factory=dict)
    waiting: Mapping[str, UnreadableRow] = field(default_factory=dict)
    """Pipelines whose newest definition is unreadable."""
    span_points: Mapping[SpanSource, Sequence[tuple[KnownPipeline, SpanPoint]]] = field(default_factory=dict)
    """What spans show, of all pipelines."""


class MetadataCache:
    """Keeps the newest snapshot. Without a store there are no tokens, and every pipeline is taken as it is named."""

    def __init__(self, store: Store | None, trusted_s: float = TRUSTED_S) -> None:
        self.store = store
        self.error: str | None = None
        """Why the database could not be read the last time; None if it could."""
        self.hangs = False
        """The database has not answered in time, and is still waited for."""
        self.unreadable = UnreadableRows()
        """Tokens and definitions that are set aside."""
        self._trusted_s = trusted_s
        self._snapshot: Snapshot | None = None
        self._asking = asyncio.Lock()
        self._reading: asyncio.Future[Snapshot] | None = None
        self._asked_at = float("-inf")
        self._definitions = None if store is None else DefinitionFeed(store, _known)

    @property
    def is_open(self) -> bool:
        """There is no database to ask."""
        return self.store is None

    @property
    def age_s(self) -> float:
        """Age of the content in seconds; infinite before it is first read."""
        return time.monotonic() - self._snapshot.taken_at if self._snapshot else float("inf")

    @property
    def is_stale(self) -> bool:
        """Whether a revoked token may still hold, since nothing could be read for some seconds."""
        return not self.is_open and self.age_s > STALE_S

    @property
    def is_trusted(self) -> bool:
        """Whether callers can be let in at all."""
        return self.is_open or self.snapshot() is not None

    def snapshot(self) -> Snapshot | None:
        """Return the newest snapshot; None while there is none to be trusted."""
        return self._snapshot if self.age_s <= self._trusted_s else None

    async def refresh(self, pause_s: float = 0.0) -> None:
        """Asks the database, at least `pause_s` after the last time, unless that was done since the call."""
        called_at = time.monotonic()
        async with self._asking:
            if self.store is None or self._asked_at >= called_at:
                return
            await asyncio.sleep(max(0.0, self._asked_at + pause_s - time.monotonic()))
            self._asked_at = time.monotonic()
            if self._reading is None:
                self._reading = asyncio.ensure_future(asyncio.to_thread(self._read, self.store))
            await asyncio.wait([self._reading], timeout=0 if self.hangs else ANSWER_S)
            self.hangs = not self._reading.done()
            if self.hangs:  # asked once, however often this is called meanwhile
                self.error = f"no response within {ANSWER_S:.0f} s"
                return
            reading, self._reading = self._reading, None
            try:
                self._snapshot = reading.result()
            except Exception as error:  # whatever it is: what is known grows old, and is read again
                is_new = self.error is None
                self.error = str(getattr(error, "orig", None) or error).strip().partition("\n")[0] or repr(error)
                if is_new and isinstance(error, SQLAlchemyError):
                    log.warning("database unreachable", why=self.error, trusted_s=self._trusted_s)
                elif is_new:
                    log.exception("metadata read failed", trusted_s=self._trusted_s)
            else:
                self.error = None

    async def keep_fresh(self) -> None:
        """Refresh until cancelled."""
        while self.store is not None:
            await self.refresh()
            await asyncio.sleep(REFRESH_S)

    def _read(self, store: Store) -> Snapshot:
        taken_at = time.monotonic()
        with store.engine.connect() as connection:
            snapshot = tokens.read(connection)
        definitions = self._definitions
        assert definitions is not None
        definitions.look()
        self.unreadable.replace("token", snapshot.unreadable)
        self.unreadable.replace("definition", definitions.unreadable)
        pipelines = {name: stored for name, stored in definitions.pipelines.items() if stored is not None}
        return Snapshot(
            taken_at,
            {token.id: token for token in snapshot if token.revoked_at_ms is None},
            frozenset(token.pipeline for token in snapshot) | {row.pipeline for row in snapshot.unreadable},
            pipelines,
            definitions.waiting,
            by_span_source(pipelines.values()),
        )


def by_span_source(pipelines: Iterable[KnownPipeline]) -> dict[SpanSource, list[tuple[KnownPipeline, SpanPoint]]]:
    """Return the points of these pipelines by the spans that show them."""
    points: dict[SpanSource, list[tuple[KnownPipeline, SpanPoint]]] = {}
    for pipeline in pipelines:
        for point in pipeline.span_points:
            points.setdefault((point.service, point.topic, point.produces), []).append((pipeline, point))
    return points


def _known(
    before: KnownPipeline | None, stored: Sequence[StoredPipeline], unreadable: Sequence[UnreadableRow]
) -> KnownPipeline | None:
    """Return a pipeline with these later versions, oldest first; None while it has no readable one."""
    for version in stored:
        graph = version.definition.graph
        before = KnownPipeline(
            version.name,
            version.version,
            frozenset(graph.sources),
            frozenset(graph.checkpoints) | (before.checkpoints if before is not None else frozenset()),
            frozenset(graph.nodes),
            version.definition.sample,
            frozenset(job.dag for job in version.definition.spec.jobs),
            version.definition.span_points,
        )
    return before
