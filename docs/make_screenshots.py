"""Takes the README's picture of a running dashboard: `python -m docs.make_screenshot URL [PATH] [--dark] [--width N]`.

Needs a chromium (Debian's, or the path in LAGLOSS_CHROMIUM) and playwright, both for development only.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from playwright.sync_api import sync_playwright

CHROMIUM_ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--no-first-run",
]


def chromium_path() -> str:
    return os.environ.get("LAGLOSS_CHROMIUM", "/usr/bin/chromium")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("path", nargs="?", type=Path, default=Path("docs/images/dashboard.png"))
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--width", type=int, default=1280)
    asked = parser.parse_args()
    asked.path.parent.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=CHROMIUM_ARGS)
        page = browser.new_page(
            viewport={"width": asked.width, "height": 900}, color_scheme="dark" if asked.dark else "light"
        )
        page.goto(asked.url)
        page.locator("#lag .main-svg").first.wait_for()
        page.locator("#window table").wait_for()
        page.locator("#loss .scatterlayer .trace").first.wait_for()
        page.evaluate("document.fonts.ready")
        page.screenshot(path=asked.path, full_page=True, animations="disabled")
        browser.close()


if __name__ == "__main__":
    main()
