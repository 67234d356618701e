"""Count windows inside Spark tasks."""
