"""The one read API: what pages and `/api/v1` show, read from PostgreSQL and the log. Knows neither Dash nor FastAPI."""
