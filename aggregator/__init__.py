"""The PySpark job: follows reports, closes windows."""
