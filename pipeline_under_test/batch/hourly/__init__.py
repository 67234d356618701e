"""The hourly job: Spark aggregates an hour of imported events, then its scores are loaded, checked and published."""
