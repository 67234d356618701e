"""The server, and what all pages share."""
