"""The read API over HTTP, `/api/v1`: routes that check parameters and print what `dashboard.queries` reads."""
