"""The page of an SLA report."""
