"""A service between Kafka topics as a node: `KafkaNode`, and the consumers and producers that it makes."""

from lagloss.kafka.node import KafkaNode, NodeConsumer, NodeProducer, carrier_of

__all__ = ["KafkaNode", "NodeConsumer", "NodeProducer", "carrier_of"]
