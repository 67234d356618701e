"""SLA reports: what a pipeline kept of what it promised, over any stretch of time."""
