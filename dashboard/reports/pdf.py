"""The report's HTML as PDF. Nothing is fetched: the page holds all it needs."""

from __future__ import annotations

import io
from contextlib import redirect_stdout

from lagloss_server.errors import PangoMissing


def pdf(page: str) -> bytes:
    """Return a PDF of this HTML document.

    Raises:
        PangoMissing: the libraries that lay out text are not installed.
    """
    try:
        with redirect_stdout(io.StringIO()):  # it prints advice of its own before it raises
            import weasyprint  # loads Pango, which only this form needs
    except OSError as error:
        raise PangoMissing(detail=str(error).split(":")[0]) from error
    nothing = weasyprint.URLFetcher(allowed_protocols=())
    document: bytes = weasyprint.HTML(string=page, url_fetcher=nothing).write_pdf(pdf_tags=True)
    return document
