"""The spool: flushes on disk before they are sent, so that a killed process loses none."""
