"""A hundred readers of pages that refresh while windows close: how long a refresh takes, beside a static file of the
same server, and how often PostgreSQL is read for all of them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import httpx2
import numpy as np
from playwright.sync_api import Request
from sqlalchemy import update

from benchmarks.chart import chromium
from benchmarks.database import transactions
from benchmarks.figures import Figure
from benchmarks.generated import add_minute, fill
from benchmarks.serving import Served, serving
from benchmarks.timing import Stopwatch
from lagloss.wire.format import WINDOW_S
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import Store

PIPELINES: Final = 10_000
NODES: Final = 3
READERS: Final = 100
LASTS_S: Final = 60
EVERY_S: Final = 5.0
ANSWER_S: Final = 1.0
_WATCHED: Final = 5
"""Pipelines whose pages are open."""
_OVERVIEWS: Final = ("/", "/?sort=lag", "/?q=9", "/?state=ok&page=2")
_STATIC: Final = "/assets/lagloss.js"
_CALLBACK: Final = "/_dash-update-component"


def run() -> list[Figure]:
    """Print and return what a refresh takes."""
    names = [f"pipeline-{number:05}" for number in range(PIPELINES)]
    last_s = 0

    def generate(store: Store) -> None:
        nonlocal last_s
        last_s = fill(store, names, NODES, minutes_days=1 / 24, rollup_days=30, hours_days=1)

    with serving(generate) as served:
        refreshes = _recorded(served, [*_OVERVIEWS, *(f"/pipelines/{name}?range=1h" for name in names[:_WATCHED])])
        with _closing(served.store, names, last_s) as closed:
            # the first read of all pipelines is not asked for
            asyncio.run(_read(served.url, refreshes, EVERY_S, _Took()))
            took = _Took()
            before = transactions(served.store), closed["transactions"], closed["windows"]
            with Stopwatch(served.pid) as spent:
                asyncio.run(_read(served.url, refreshes, LASTS_S, took))
            after = transactions(served.store), closed["transactions"], closed["windows"]
    every, written, windows = (late - early for early, late in zip(before, after, strict=True))
    read = every - written
    print(f"{len(names):,} pipelines, {READERS} readers for {spent.wall_s:.0f} s, {windows:,} windows closed")
    for kind, seconds in took.refreshes.items():
        p50, p95, most = np.quantile(seconds, [0.5, 0.95, 1.0]) * 1_000
        print(f"{kind}: {len(seconds)} refreshes, p50 {p50:.0f} ms, p95 {p95:.0f} ms, at most {most:.0f} ms")
    p50, p95 = np.quantile(took.static, [0.5, 0.95])
    print(f"{_STATIC}, in turns: p50 {p50 * 1_000:.0f} ms, p95 {p95 * 1_000:.0f} ms (asked for: {ANSWER_S:g} s)")
    refreshed = sum(map(len, took.refreshes.values()))
    print(f"{read:,} reads of PostgreSQL: {read / refreshed:.2f} per refresh, {read / spent.wall_s:.1f} per second")
    print(f"the dashboard took {spent.servers_s / spent.wall_s:.2f} cores")
    static_s = float(np.quantile(took.static, 0.95))
    return [
        Figure(
            f"{kind} refreshed, p95, {len(names):,} pipelines", float(np.quantile(seconds, 0.95)), "s", ANSWER_S,
            static_s, "static file, in turns",
        )
        for kind, seconds in took.refreshes.items()
    ]  # fmt: skip


@dataclass
class _Took:
    """Seconds, by kind of page and of the static file."""

    refreshes: dict[str, list[float]] = field(default_factory=dict)
    static: list[float] = field(default_factory=list)


def _recorded(served: Served, paths: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Return what each page sends at its clock's tick, as a browser does."""
    windows: dict[str, list[dict[str, Any]]] = {}
    with chromium() as browser:
        for path in paths:
            page, sent = browser.new_page(), list[dict[str, Any]]()

            def note(request: Request, sent: list[dict[str, Any]] = sent) -> None:
                if _CALLBACK in request.url and "tick.n_intervals" in (request.post_data or ""):
                    body: Any = request.post_data_json
                    if body["changedPropIds"] == ["tick.n_intervals"]:
                        sent.append(body)

            page.on("request", note)
            page.goto(f"{served.url}{path}")
            ends = time.monotonic() + 60
            while not sent and time.monotonic() < ends:
                page.wait_for_timeout(200)
            windows[path] = list({body["output"]: body for body in sent}.values())
            page.close()
    return windows


async def _read(url: str, refreshes: dict[str, list[dict[str, Any]]], lasts_s: float, took: _Took) -> None:
    """Half of the readers look at the overview, the others at pipelines."""
    kinds = [_OVERVIEWS, [path for path in refreshes if path not in _OVERVIEWS]]
    limits = httpx2.Limits(max_connections=READERS)
    async with httpx2.AsyncClient(base_url=url, timeout=60, limits=limits) as client:

        async def reader(number: int) -> None:
            paths = kinds[number % 2]
            path = paths[number // 2 % len(paths)]
            kind = "overview" if path in _OVERVIEWS else "pipeline"
            next_s = time.monotonic() + EVERY_S * number / READERS
            ends_s = time.monotonic() + lasts_s
            while next_s < ends_s:
                await asyncio.sleep(max(0.0, next_s - time.monotonic()))
                began = time.perf_counter()
                (await client.get(_STATIC)).raise_for_status()
                took.static.append(time.perf_counter() - began)
                began = time.perf_counter()
                for answer in await asyncio.gather(*(client.post(_CALLBACK, json=path) for path in refreshes[path])):
                    answer.raise_for_status()
                took.refreshes.setdefault(kind, []).append(time.perf_counter() - began)
                next_s += EVERY_S

        await asyncio.gather(*map(reader, range(READERS)))


@contextmanager
def _closing(store: Store, names: Sequence[str], last_s: int) -> Iterator[Counter[str]]:
    """Close a window of each pipeline within each minute, evenly spread, while its emitters report each second."""
    done, counted = threading.Event(), Counter[str]()

    def close() -> None:
        began = time.monotonic()
        while not done.is_set():
            due = int((time.monotonic() - began) / WINDOW_S * len(names))
            while counted["windows"] < due:
                minute, first = divmod(counted["windows"], len(names))
                part = names[first : first + due - counted["windows"]]
                add_minute(store, part, NODES, last_s + (minute + 1) * WINDOW_S)
                counted.update(windows=len(part), transactions=1)
            with store.engine.begin() as connection:
                connection.execute(update(tables.EmitterRow).values(appended_at=int(time.time() * 1_000)))
            counted["transactions"] += 1
            done.wait(1.0)

    thread = threading.Thread(target=close)
    thread.start()
    try:
        yield counted
    finally:
        done.set()
        thread.join()
