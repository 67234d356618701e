"""The dashboard over a database of a benchmark's own, and how long its answers and pages take."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx2
from playwright.sync_api import Page

from benchmarks.chart import chromium
from benchmarks.database import fresh_database
from benchmarks.figures import Figure
from benchmarks.services import running, running_application
from benchmarks.timing import timed_s
from lagloss_server.store.store import Store

ROUNDS: Final = 5
SHELL_PATH: Final = "/no-such-page"
"""The shell alone: Dash's code, the frame, one callback, and nothing that was read."""
_OVER_BARE: Final = 1.2
"""Time that a page may take beside Dash with one chart, where that alone is slower than what is asked for."""
PAINTED_S: Final = 0.5
"""Time until a page's first paint, which holds its verdict (dashboard/web/first_answer.py)."""
_STILL_MS: Final = 700
"""A page that shows what it is for, and to which nothing was added for so long, is whole."""
_GIVE_UP_S: Final = 30.0
_WATCH: Final = """
window.lastAdded = 0;
new MutationObserver(changes => {
  if (changes.some(change => [...change.addedNodes].some(node => node.nodeType === Node.ELEMENT_NODE)))
    window.lastAdded = performance.now();
}).observe(document, {childList: true, subtree: true});
"""
_PAINTED_MS: Final = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


@dataclass(frozen=True)
class Served:
    """A running dashboard, in one process."""

    store: Store
    url: str
    pid: int


@contextmanager
def serving(fill: Callable[[Store], object]) -> Iterator[Served]:
    """`python -m dashboard` on a database that `fill` has filled, once it answers."""
    with fresh_database() as (folder, postgres, store):
        took_s = timed_s(lambda: fill(store))
        print(f"generated in {took_s:.0f} s", flush=True)
        with running("dashboard", folder, {"LAGLOSS_DATABASE_URL": postgres.url}) as dashboard:
            dashboard.await_answer("/healthz")
            yield Served(store, dashboard.url, dashboard.pid)


def measure_answer(served: Served, path: str, bare: Callable[[], object], budget_s: float) -> Figure:
    """Print and return the time of an API answer beside that of a bare read of its rows, in turns."""
    with httpx2.Client(base_url=served.url, timeout=60) as client:
        first_s = timed_s(lambda: client.get(path))
        answer = client.get(path)
        answer.raise_for_status()
        answers_s, bare_s = [], []
        for _ in range(ROUNDS):
            bare_s.append(timed_s(bare))
            answers_s.append(timed_s(lambda: client.get(path)))
    took_s, bare_took_s = statistics.median(answers_s), statistics.median(bare_s)
    print(
        f"{path}: {took_s * 1_000:.0f} ms, first {first_s * 1_000:.0f} ms, {len(answer.content) / 1_000:.0f} kB"
        f" (bare SELECT {bare_took_s * 1_000:.0f} ms; asked for: {budget_s:g} s)",
        flush=True,
    )
    return Figure(path, took_s, "s", budget_s, bare_took_s, "bare SELECT")


def measure_pages(served: Served, paths: list[str], shows: str, budget_s: float) -> list[Figure]:
    """Print how long each page takes in a browser until its first paint, and until it has what the selector `shows`
    finds and nothing is added to it any more, beside our bare shell and beside Dash with one chart, in turns. Each load
    begins with an empty cache. Where Dash itself is slower than what is asked for, a page may take a little longer."""
    with (
        tempfile.TemporaryDirectory(prefix="lagloss-bench-") as folder,
        running_application("benchmarks.bare_dash:server", Path(folder)) as bare,
        chromium() as browser,
    ):
        loads = {
            "Dash with one chart": (bare.url, ".legend .traces"),
            "the bare shell": (f"{served.url}{SHELL_PATH}", "main [role=alert]"),
            **{f"page {path}": (f"{served.url}{path}", shows) for path in paths},
        }
        took_s: dict[str, list[float]] = {name: [] for name in loads}
        painted_s: dict[str, list[float]] = {name: [] for name in loads}
        for _ in range(ROUNDS):
            for name, (url, selector) in loads.items():
                with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
                    page = context.new_page()
                    took_s[name].append(_whole_after_s(page, url, selector))
                    painted_s[name].append(page.evaluate(_PAINTED_MS) / 1_000)
    middle_s = {name: statistics.median(runs) for name, runs in took_s.items()}
    for name, runs in took_s.items():
        each_s = ", ".join(f"{time_s:.2f}" for time_s in runs)
        print(
            f"{name}: painted after {statistics.median(painted_s[name]):.2f} s (asked for: {PAINTED_S:g} s), usable "
            f"after {middle_s[name]:.2f} s (runs {each_s}; asked for: {budget_s:g} s)",
            flush=True,
        )
    dash_s = middle_s["Dash with one chart"]
    allowed_s = max(budget_s, _OVER_BARE * dash_s)
    return [
        figure
        for path in paths
        for figure in (
            Figure(f"page {path}, usable", middle_s[f"page {path}"], "s", allowed_s, dash_s, "Dash with one chart"),
            Figure(f"page {path}, painted", statistics.median(painted_s[f"page {path}"]), "s", PAINTED_S),
        )
    ]


def _whole_after_s(page: Page, url: str, shows: str) -> float:
    """From the request to the last element that was added."""
    page.add_init_script(_WATCH)
    page.goto(url)
    page.wait_for_selector("#first-answer", state="detached", timeout=_GIVE_UP_S * 1_000)
    page.wait_for_selector(shows, timeout=_GIVE_UP_S * 1_000)
    ends = time.monotonic() + _GIVE_UP_S
    now_ms = added_ms = 0.0
    while now_ms - added_ms < _STILL_MS and time.monotonic() < ends:
        page.wait_for_timeout(50)
        now_ms, added_ms = page.evaluate("[performance.now(), window.lastAdded]")
    return added_ms / 1_000
