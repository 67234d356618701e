"""Sums over many windows: roll-ups, quality, error budgets. Pure: neither SQL nor Kafka."""
