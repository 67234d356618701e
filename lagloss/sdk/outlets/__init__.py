"""Destinations of an emitter's records: Kafka, a collector, or memory."""
