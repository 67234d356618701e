"""Questions about windows and messages, answered from PostgreSQL and the log together."""
