"""Authorization: by a token, or for processes of this machine while the pipeline has no token.

A process of this machine is a peer at 127.0.0.1 or ::1 of a collector that listens on loopback only. A proxy on this
machine is none, nor is a page in its browser: requests that either has handed on need a token, or are refused.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, replace
from typing import Final, Literal

from fastapi import Request
from limits import RateLimitItemPerSecond
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter

from collector.fairness import stays
from collector.metadata_cache import ASK_AGAIN_S, KnownPipeline, MetadataCache, Snapshot, SpanSource
from lagloss_server.model.spans import SpanPoint
from lagloss_server.net.clients import is_local, is_loopback
from lagloss_server.net.problem_details import Problem, busy
from lagloss_server.store.tokens import Scope, Token, recognise

RATE_WINDOW_S: Final = 10
"""A token's rate holds over this many seconds, so that a batch may be larger than a second's share."""

DEFINITIONS_RATE: Final = 16
"""KiB of definitions per second and pipeline, over as long. Reading one of 64 KiB can take 0.7 s."""

MAX_UNNAMED: Final = 10_000
"""Services and topics of spans that are remembered since no definition names them: each of them costs one query."""

Need = Scope | Literal["delete"]
"""What a request is for; to delete a pipeline takes a token, whoever asks."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request: the holder of a token, or a process of this machine. `has_gone`: whether it has
    disconnected; to be asked once the body is read."""

    token: Token | None
    has_gone: Callable[[], Awaitable[bool]] = stays

    @property
    def scope(self) -> str:
        """Name of the caller, as a key of data kept per caller."""
        return self.token.id if self.token else ""

    @property
    def tenant(self) -> str:
        """Name of whoever shares room with this caller: all tokens of a pipeline do."""
        return self.token.pipeline if self.token else ""


class Access:
    """Decides on requests, by the known tokens and definitions."""

    def __init__(self, knowledge: MetadataCache, bind_address: str = "127.0.0.1") -> None:
        self.knowledge = knowledge
        self._trusts_local = is_loopback(bind_address)
        self._unnamed: set[SpanSource] = set()
        self._limiter = SlidingWindowCounterRateLimiter(MemoryStorage())

    async def caller(self, request: Request) -> Caller:
        """Return the caller that the request's token names.

        Raises:
            Problem: 401 without a token that holds, unless the peer is on this machine; 503 while nothing is known.
        """
        request.state.caller = caller = await self._caller(request)
        return replace(caller, has_gone=request.is_disconnected)  # in its state, the request would hold itself

    async def _caller(self, request: Request) -> Caller:
        scheme, _, text = request.headers.get("authorization", "").partition(" ")
        if not scheme:
            if not self.is_local(request):
                raise _unauthorised("expected a bearer token: only clients on this machine can connect without one")
            return Caller(None)
        if scheme.lower() != "bearer":
            raise _unauthorised("expected the authorization scheme Bearer")
        token = recognise(text.strip(), (await self._snapshot()).tokens)
        if token is None:
            await self.knowledge.refresh(ASK_AGAIN_S)
            token = recognise(text.strip(), (await self._snapshot()).tokens)
        if token is None:
            raise _unauthorised("expected a valid token; create one with `lagloss token create`")
        return Caller(token)

    def is_local(self, request: Request) -> bool:
        """Return whether a process of this machine asks, itself."""
        return self._trusts_local and is_local(request)

    async def admit(self, caller: Caller, pipeline: str, needs: Need = "intake") -> None:
        """Return True if this caller is allowed to act on the pipeline.

        Raises:
            Problem: 403 for another token's pipeline or scope, 401 without the token that the pipeline asks for.
        """
        if caller.token is None:
            if not self.knowledge.is_open and pipeline in (await self._snapshot()).guarded:
                raise _unauthorised(f"expected a token of {pipeline}")
            if needs == "delete":
                raise _unauthorised(
                    "expected a token of scope admin; create one with `lagloss token create --scope admin`"
                )
            return
        if caller.token.pipeline != pipeline:
            raise Problem(403, "Not allowed", f"expected a token of {pipeline}, found one of {caller.token.pipeline}")
        if needs in ("admin", "delete") and caller.token.scope != "admin":
            raise Problem(
                403,
                "Not allowed",
                "expected a token of scope admin; create one with `lagloss token create --scope admin`",
            )

    async def pipeline(
        self, caller: Caller, name: str, checkpoints: Collection[str] = frozenset(), *, may_wait: bool = False
    ) -> KnownPipeline | None:
        """Return the pipeline that an admitted caller sends beacons of; None where there is no database to know it
        from. One that is unknown, or unknown to have one of these checkpoints, is looked up again: another process may
        just have stored it.

        Args:
            may_wait: nothing of the definition is needed: return None, too, while it is unreadable.

        Raises:
            Problem: 404 for an unknown one, 503 for one whose definition is unreadable, and those of `admit`.
        """
        await self.admit(caller, name)
        if self.knowledge.is_open:
            return None
        snapshot = await self._snapshot()
        if (unreadable := snapshot.waiting.get(name)) is not None:
            if may_wait:
                return None
            raise busy(f"{name} is waiting: cannot read {unreadable}")
        pipeline = snapshot.pipelines.get(name)
        if pipeline is None or not pipeline.checkpoints.issuperset(checkpoints):
            await self.knowledge.refresh(ASK_AGAIN_S)
            pipeline = (await self._snapshot()).pipelines.get(name)
        if pipeline is None and self.knowledge.error is not None:
            raise busy(f"{name} is unknown, and PostgreSQL cannot be reached to look it up")
        if pipeline is None:
            raise Problem(404, "Unknown pipeline", f"no pipeline is named {name}; add one with `lagloss apply`")
        return pipeline

    async def pipelines_of_dags(self, caller: Caller, dags: Collection[str]) -> dict[str, list[str]]:
        """Return, by DAG, the pipelines that name it as a job and that this caller may report to. `dags`: those that
        are asked for, looked up again if no pipeline is known to name one.

        Raises:
            Problem: 503 while the definition of the caller's pipeline is unreadable.
        """
        snapshot = await self._snapshot()
        if not {dag for stored in snapshot.pipelines.values() for dag in stored.dags}.issuperset(dags):
            await self.knowledge.refresh(ASK_AGAIN_S)
            snapshot = await self._snapshot()
        if (unreadable := snapshot.waiting.get(caller.tenant)) is not None:
            raise busy(f"{caller.tenant} is waiting: cannot read {unreadable}")
        names: dict[str, list[str]] = {}
        for name, pipeline in snapshot.pipelines.items():
            if name == caller.tenant or (caller.token is None and name not in snapshot.guarded):
                for dag in pipeline.dags:
                    names.setdefault(dag, []).append(name)
        return names

    async def span_points(
        self, caller: Caller, sources: Collection[SpanSource]
    ) -> dict[SpanSource, list[tuple[KnownPipeline, SpanPoint]]]:
        """Return, by what spans say, the points that definitions name and that this caller may send beacons of; an
        empty list where all are of other callers. Sources that no definition names are left out; one that was not seen
        before is looked up at once.

        Raises:
            Problem: 503 while the definition of the caller's pipeline is unreadable.
        """
        if self.knowledge.is_open:
            return {}
        snapshot = await self._snapshot()
        new = {source for source in sources if source not in snapshot.span_points} - self._unnamed
        if new:
            if len(self._unnamed) + len(new) > MAX_UNNAMED:
                self._unnamed.clear()
            self._unnamed |= new
            await self.knowledge.refresh(ASK_AGAIN_S)
            snapshot = await self._snapshot()
        if (unreadable := snapshot.waiting.get(caller.tenant)) is not None:
            raise busy(f"{caller.tenant} is waiting: cannot read {unreadable}")

        def may_send(name: str) -> bool:
            return name == caller.tenant or (caller.token is None and name not in snapshot.guarded)

        return {
            source: [(pipeline, point) for pipeline, point in snapshot.span_points[source] if may_send(pipeline.name)]
            for source in sources
            if source in snapshot.span_points
        }

    async def spend(self, caller: Caller, beacons: int, paid: int = 0) -> None:
        """Charge beacons, or the parts of a report, to the token's rate: those of a request, less what it has paid.

        Raises:
            Problem: 429 when they come too fast, 413 for more than may come at all.
        """
        if caller.token is not None and caller.token.rate is not None:
            await self._hit("beacons", caller.token.id, caller.token.rate, beacons, paid)

    async def charge(self, caller: Caller, units: int) -> None:
        """Charge units of work to the token's rate, which allows as many of them as of beacons: what a request takes,
        whatever comes of it. A unit is a KiB of a body, or what is as much to do.

        Raises:
            Problem: 429 when they come too fast, 413 for more than may come at all.
        """
        if caller.token is not None and caller.token.rate is not None:
            await self._hit("KiB of bodies", caller.token.id, caller.token.rate, units)

    async def charge_question(self, caller: Caller, units: int) -> None:
        """Charge a question's work as `charge` does, but never more than may come at all: it has no smaller parts.

        Raises:
            Problem: 429 when they come too fast.
        """
        if caller.token is not None and caller.token.rate is not None:
            await self.charge(caller, max(1, min(units, caller.token.rate * RATE_WINDOW_S)))

    async def charge_definition(self, pipeline: str, units: int) -> None:
        """Charge units of work to a pipeline's definitions, whoever sends them.

        Raises:
            Problem: 429 when they come too fast.
        """
        await self._hit("KiB of definitions", pipeline, DEFINITIONS_RATE, units)

    async def _hit(self, what: str, whose: str, rate: int, amount: int, paid: int = 0) -> None:
        allowed = rate * RATE_WINDOW_S
        if amount > allowed:
            raise Problem(
                413,
                "Request exceeds the rate limit",
                f"expected up to {allowed} {what} in {RATE_WINDOW_S} s; send less per request",
            )
        item = RateLimitItemPerSecond(allowed, RATE_WINDOW_S)
        if not await self._limiter.hit(item, what, whose, cost=amount - paid):
            resets_at = (await self._limiter.get_window_stats(item, what, whose)).reset_time
            wait_s = max(1, math.ceil(resets_at - time.time()))
            detail = f"expected up to {rate} {what} per second, averaged over {RATE_WINDOW_S} s; send again later"
            raise Problem(429, "Rate limit exceeded", detail, headers={"Retry-After": str(wait_s)})

    async def _snapshot(self) -> Snapshot:
        snapshot = self.knowledge.snapshot()
        if snapshot is None:
            await self.knowledge.refresh(ASK_AGAIN_S)
            snapshot = self.knowledge.snapshot()
        if snapshot is None:
            raise busy("cannot look up tokens and definitions: PostgreSQL cannot be reached; send again later")
        return snapshot


def _unauthorised(detail: str) -> Problem:
    return Problem(401, "Token required", detail, headers={"WWW-Authenticate": 'Bearer realm="lagloss"'})
