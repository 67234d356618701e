"""The pipeline's own Kafka: topics, clients that neither lose nor forget anything, and how far consumer groups are."""
