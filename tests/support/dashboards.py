"""A served dashboard for tests in a real browser: its process, pages that hear every complaint, what to wait for."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx2
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Response, expect

from lagloss_server.ops.processes import choose_port
from lagloss_server.store.store import Store
from tests.support.kafka_log import PATIENCE
from tests.support.window_documents import clicks

WAIT_S = 20 * PATIENCE
expect.set_options(timeout=WAIT_S * 1_000)  # a refresh comes each 5 s, and other tests keep the machine busy


@contextmanager
def serving(database_url: str, port: int | None = None, **settings: str) -> Iterator[str]:
    """`python -m dashboard` on this database, once it answers; its URL. `port`: by default a free one; `settings`:
    further LAGLOSS_ variables."""
    port = port or choose_port("the dashboard under test")
    given = {"LAGLOSS_DATABASE_URL": database_url, "LAGLOSS_DASHBOARD_PORT": str(port), **settings}
    process = subprocess.Popen([sys.executable, "-m", "dashboard"], env={**os.environ, **given})
    url = f"http://127.0.0.1:{port}"
    try:
        until(lambda: _answers(url, process), "the dashboard to answer", timeout_s=120)
        yield url
    finally:
        process.terminate()
        assert process.wait(20) in (0, -15)


@contextmanager
def serving_clicks(database_url: str) -> Iterator[str]:
    """One that knows the pipeline `clicks`, of which nobody has told anything; its URL."""
    store = Store(database_url)
    store.apply(clicks())
    store.close()
    with serving(database_url) as url:
        yield url


def _answers(url: str, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "the dashboard ended"
    try:
        return httpx2.get(f"{url}/healthz").is_success
    except httpx2.HTTPError:
        return False


def until(condition: Callable[[], object], what: str, timeout_s: float = WAIT_S) -> None:
    """Waits until the condition holds. Playwright's own wait_for_function would evaluate text, which the page's
    security policy forbids."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s:g} s for {what}"
        time.sleep(0.1)


def address(page: Page) -> str:
    """The page's address now; `page.url` hears of changes without a load only while something else is waited for."""
    return str(page.evaluate("location.href"))


def _until_filled(page: Page, load: Callable[..., Response | None]) -> Callable[..., Response | None]:
    """Returns what loads an address and waits until the page has replaced the first answer: links of that one load
    anew, and what has the focus there is taken away."""

    def loaded(*arguments: Any, **options: Any) -> Response | None:
        response = load(*arguments, **options)
        page.locator("#first-answer").wait_for(state="detached")
        return response

    return loaded


class Watched:
    """A page, every host it asked and whatever its console complained about. Use as a context manager: it fails in the
    end if the page asked another host or complained."""

    def __init__(
        self,
        browser: Browser,
        *,
        width: int = 1280,
        dark: bool = False,
        zone: str = "UTC",
        headers: dict[str, str] | None = None,
    ) -> None:
        self._context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            timezone_id=zone,
            accept_downloads=True,
            extra_http_headers=headers,
        )
        self.page: Page = self._context.new_page()
        self.page.set_default_timeout(WAIT_S * 1_000)
        for name in ("goto", "reload"):
            setattr(self.page, name, _until_filled(self.page, getattr(self.page, name)))
        self.hosts: set[str] = set()
        self.complaints: list[str] = []
        self.expected: list[str] = []
        """Parts of complaints that a test provokes."""
        self.page.on("request", lambda request: self.hosts.add(urlsplit(request.url).hostname or request.url[:40]))
        self.page.on("websocket", lambda socket: self.hosts.add(urlsplit(socket.url).hostname or ""))
        self.page.on(
            "console", lambda said: self.complaints.append(said.text) if said.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def __enter__(self) -> Page:
        return self.page

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._context.close()
        if kind is None:
            assert {host for host in self.hosts if not host.startswith(("data:", "blob:"))} <= {"127.0.0.1"}
            unexpected = [said for said in self.complaints if not any(part in said for part in self.expected)]
            assert not unexpected, unexpected


def serious_faults(page: Page) -> list[str]:
    """What axe finds that keeps people out: faults of impact serious and critical, with where they are."""
    found = Axe().run(page).response["violations"]
    return [
        f"{fault['id']}: {fault['help']}: {[node['html'][:200] for node in fault['nodes'][:3]]}"
        for fault in found
        if fault["impact"] in ("serious", "critical")
    ]


def sticks_out(page: Page) -> bool:
    """Whether the page is wider than its window: readers would have to scroll sideways."""
    return bool(page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth + 1"))
