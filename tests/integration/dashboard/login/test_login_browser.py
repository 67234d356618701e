"""The login in a real browser: the form, with and without scripts, and the way back from a provider."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from lagloss_server.store import users
from lagloss_server.store.store import Store
from tests.support.login_world import PASSWORD, serving


@pytest.fixture(scope="module")
def url(module_database_url: str) -> Iterator[str]:
    store = Store(module_database_url)
    users.add(store, "ann", "viewer", PASSWORD)
    with serving(store, login="local") as url:
        yield url
    store.close()


@contextmanager
def another_site(url: str) -> Iterator[str]:
    """A page under another name, with a form that would log out, and the dashboard in a frame."""
    page = f'<form method="post" action="{url}/logout"><button>Win</button></form><iframe src="{url}/"></iframe>'

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://localhost:{server.server_port}/"
        server.shutdown()
        thread.join(10)


@pytest.mark.parametrize("scripts", [True, False])
def test_a_person_logs_in_looks_around_and_logs_out(url: str, browser: Browser, scripts: bool) -> None:
    context = browser.new_context(java_script_enabled=scripts)
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda said: complaints.append(said.text))
    page.goto(f"{url}/?pipeline=a%20b")
    expect(page).to_have_url(f"{url}/login?next=%2F%3Fpipeline%3Da%2520b")
    expect(page).to_have_title("Log in · lagloss")
    page.get_by_label("Name").fill("ann")
    page.get_by_label("Password").fill("wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("name or password is wrong")
    expect(page.get_by_label("Name")).to_have_value("ann")
    assert [said for said in complaints if "401" not in said] == []
    page.get_by_label("Password").fill(PASSWORD)
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{url}/?pipeline=a%20b")
    expect(page.locator("#who")).to_have_text("ann, viewer")
    page.reload()
    expect(page.locator("#who")).to_have_text("ann, viewer")
    page.get_by_role("button", name="Log out").click()
    expect(page).to_have_url(f"{url}/login")
    page.goto(f"{url}/")
    expect(page.get_by_label("Password")).to_be_visible()
    page.go_back()
    expect(page.get_by_label("Password")).to_be_visible()
    context.close()


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_form_can_be_used_by_everybody(url: str, browser: Browser, colours: str, width: int) -> None:
    # axe is put into the page, whose policy forbids that
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=colours, bypass_csp=True)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(f"{url}/login")
    assert Axe().run(page).response["violations"] == []
    assert page.evaluate("document.documentElement.scrollWidth") == width
    context.close()


def test_a_page_of_another_site_can_neither_act_nor_show_the_dashboard_within_itself(
    url: str, browser: Browser
) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{url}/login")
    page.get_by_label("Name").fill("ann")
    page.get_by_label("Password").fill(PASSWORD)
    page.keyboard.press("Enter")
    expect(page.locator("#who")).to_have_text("ann, viewer")
    with another_site(url) as evil:
        page.goto(evil)
        with page.expect_navigation(url=f"{url}/logout") as refused:
            page.get_by_role("button", name="Win").click()
        assert refused.value.status == 403
        page.goto(evil)
        assert page.frame_locator("iframe").locator("#who").count() == 0
    page.goto(url)
    expect(page.locator("#who")).to_have_text("ann, viewer")
    context.close()
