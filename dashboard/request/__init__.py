"""What a request brings: its span of time, time zone, links and user."""
