"""Parts of a request: its span of time, time zone, links and user."""
