"""Views that rules judge, read from PostgreSQL and cached between evaluations."""
