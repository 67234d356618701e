"""The rules of arithmetic: pure, without SQL and Kafka."""
