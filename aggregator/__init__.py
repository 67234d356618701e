"""PySpark job that consumes reports and closes windows."""
