"""Takes the pictures of README and docs from a running demo: `make screenshots`.

Needs a chromium (Debian's, or the path in LAGLOSS_CHROMIUM) and playwright, both for development only.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2
from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM_ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--no-first-run",
]
IMAGES: Final = Path(__file__).parent / "images"
WAIT_S: Final = 600
"""The demo's first live window with losses closes within three minutes, on a busy machine within ten."""
PIPELINE: Final = "clicks"
SETTLED_MS: Final = 3_000
"""Charts and grids move to their places for a moment; a page that refreshes itself is never idle."""


@dataclass(frozen=True)
class Shot:
    """One picture: `path` may name `{window}`, the start of the newest lossy window; `shows` is there once all is."""

    name: str
    path: str
    shows: str
    dark: bool = False
    full_page: bool = True


SHOTS: Final = (
    Shot("overview", "/?zone=UTC", "text=clicks"),
    Shot("dashboard", f"/pipelines/{PIPELINE}?range=1h&zone=UTC", ".js-plotly-plot .main-svg"),
    Shot("dashboard-dark", f"/pipelines/{PIPELINE}?range=1h&zone=UTC", ".js-plotly-plot .main-svg", dark=True),
    Shot("window", f"/pipelines/{PIPELINE}/windows/{{window}}?zone=UTC", ".ag-row"),
    Shot("message", f"/pipelines/{PIPELINE}/messages?id={{message}}&zone=UTC", ".js-plotly-plot .main-svg"),
    Shot("alerts", "/alerts?zone=UTC", "main h1, main h2"),
    Shot("report", f"/pipelines/{PIPELINE}/report?range=this-month&zone=UTC", "main section"),
    Shot("groups", "/groups?zone=UTC", "main tbody tr"),
    Shot("health", "/health?zone=UTC", "main h1, main h2"),
    Shot("audit", "/audit?zone=UTC&range=24h", "main table"),
)


def chromium_path() -> str:
    return os.environ.get("LAGLOSS_CHROMIUM", "/usr/bin/chromium")


@contextmanager
def demo() -> Iterator[str]:
    """Run a demo, and yield the dashboard's URL once it is up."""
    with tempfile.TemporaryDirectory(prefix="lagloss-pictures-") as folder:
        Path(folder).chmod(0o711)  # PostgreSQL's user is another one than root
        words = [sys.executable, "-m", "lagloss_server.cli.main", "demo"]
        environment = {**os.environ, "LAGLOSS_DATA_DIR": folder}
        process = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL)
        endpoints = Path(folder) / "demo" / "endpoints.json"
        try:
            yield str(json.loads(_awaited(lambda: _text(endpoints), "the demo"))["dashboard"])
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(120)


def _text(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


def _awaited(look: Callable[[], Any], what: str) -> Any:
    """Wait until `look` finds something, and return it."""
    deadline = time.monotonic() + WAIT_S
    while (found := look()) is None:
        if time.monotonic() > deadline:
            sys.exit(f"waited {WAIT_S} s for {what}")
        time.sleep(2)
    return found


def _lossy_window(url: str) -> dict[str, Any] | None:
    """Return the newest full live window that lost something."""
    answer = httpx2.get(f"{url}/api/v1/pipelines/{PIPELINE}/windows", params={"from": "-10m"}, timeout=30)
    found = [
        window
        for window in (answer.json() if answer.is_success else [])
        if window["verdict"] == "loss" and not window.get("history") and window["messages"] > 2_000
    ]
    return found[-1] if found else None


def _lost_message(url: str, window_start: str) -> str:
    answer = httpx2.get(
        f"{url}/api/v1/pipelines/{PIPELINE}/windows/{window_start}/matrix",
        params={"only": "missing", "limit": 1},
        timeout=60,
    )
    return str(answer.raise_for_status().json()["messages"][0]["message_id"])


def _take(browser: Browser, url: str, shot: Shot, facts: dict[str, str]) -> None:
    page: Page = browser.new_page(
        viewport={"width": 1280, "height": 900}, color_scheme="dark" if shot.dark else "light", timezone_id="UTC"
    )
    page.goto(url + shot.path.format(**facts))
    page.locator(shot.shows).first.wait_for(timeout=60_000)
    for key in ("End", "Home"):  # what is drawn when it is seen
        page.keyboard.press(key)
        page.wait_for_timeout(SETTLED_MS / 2)
    page.evaluate("document.fonts.ready")
    page.screenshot(path=IMAGES / f"{shot.name}.png", full_page=shot.full_page, animations="disabled")
    page.close()


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    with demo() as url, sync_playwright() as playwright:
        window = _awaited(lambda: _lossy_window(url), "a window that lost messages")["window_start"]
        facts = {"window": window, "message": _lost_message(url, window)}
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=CHROMIUM_ARGS)
        for shot in SHOTS:
            _take(browser, url, shot, facts)
            sys.stdout.write(f"docs/images/{shot.name}.png\n")
        browser.close()


if __name__ == "__main__":
    main()
