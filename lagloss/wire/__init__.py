"""The wire format: what SDK and services write to Kafka and read from it."""
