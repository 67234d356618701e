"""The wire format: the records that SDK and services write to Kafka and read from it."""
