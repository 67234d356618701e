"""The chart of cost against size in docs/scaling.md, drawn from docs/images/scaling.csv: `python -m benchmarks.chart`.

Needs chromium, as docs/make_screenshots.py does.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import plotly.graph_objects as go
from playwright.sync_api import Browser, sync_playwright

from docs.make_screenshots import CHROMIUM_ARGS, chromium_path

IMAGES = Path(__file__).parent.parent / "docs" / "images"


def main() -> None:
    with (IMAGES / "scaling.csv").open() as rows:
        lines = list(csv.DictReader(rows))
    figure = go.Figure()
    for way, name in (("read", "read from the log"), ("proven", "proven by tallies")):
        points = [(int(row["beacons"]), float(row["seconds"])) for row in lines if row["way"] == way]
        figure.add_scatter(
            x=[size for size, _ in points], y=[seconds for _, seconds in points], name=name, mode="lines+markers+text",
            text=[f"{seconds:.3g} s" for _, seconds in points], textposition="top center",
        )  # fmt: skip
    figure.update_layout(
        template="plotly_white", width=760, height=420, font_size=14, legend={"x": 0.02, "y": 0.98},
        title="Cost of closing one window, by its size (2 cores)",
        xaxis={"title": "beacons in the window", "type": "log", "exponentformat": "SI"},
        yaxis={"title": "seconds", "type": "log", "range": [-3, 1.6]},
    )  # fmt: skip
    draw(figure, IMAGES / "scaling.png")


def draw(figure: go.Figure, path: Path) -> None:
    """Write a figure as a picture, of the size that its layout has."""
    with chromium() as browser:
        size = {"width": figure.layout.width + 20, "height": figure.layout.height + 20}
        page = browser.new_page(viewport=size)  # type: ignore[arg-type]
        page.set_content(figure.to_html(include_plotlyjs=True))
        page.locator(".main-svg").first.wait_for()
        page.locator(".plotly-graph-div").screenshot(path=path)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run a browser without a window."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=CHROMIUM_ARGS)
        yield browser
        browser.close()


if __name__ == "__main__":
    main()
