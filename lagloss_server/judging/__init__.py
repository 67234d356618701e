"""Judging: the rules of arithmetic over facts and evidence, for one window. Pure: neither SQL nor Kafka."""
