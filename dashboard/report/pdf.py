"""The report's HTML as PDF. Nothing is fetched: the page holds all it needs."""

from __future__ import annotations

from typing import NoReturn

from lagloss.errors import PangoMissing


def pdf(page: str) -> bytes:
    """A PDF of this HTML document.

    Raises:
        PangoMissing: the libraries that lay out text are not installed.
    """
    try:
        import weasyprint  # loads Pango, which only this form needs
    except OSError as error:
        raise PangoMissing(detail=str(error).splitlines()[0]) from error
    document: bytes = weasyprint.HTML(string=page, url_fetcher=_refuse).write_pdf(pdf_tags=True)
    return document


def _refuse(url: str) -> NoReturn:
    raise ValueError(f"expected a page that needs nothing from outside, found {url[:100]}")
