"""Where an emitter's records go: to Kafka, or to a collector."""
