"""The reference pipeline `clicks`: nodes between Kafka topics, from an HTTP intake to two vendors."""
