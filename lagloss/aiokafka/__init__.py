"""A service between Kafka topics as a node, with aiokafka: `AIOKafkaNode`, and the consumers and producers that it
makes. Needs the extra `aiokafka`."""

try:
    import aiokafka as _aiokafka  # noqa: F401  # for an error that says what to install
except ModuleNotFoundError as error:
    problem = "lagloss.aiokafka needs aiokafka: run `pip install 'lagloss[aiokafka]'`"
    raise ModuleNotFoundError(problem, name=error.name) from error

from lagloss.aiokafka.consumer import AIONodeConsumer
from lagloss.aiokafka.node import AIOKafkaNode
from lagloss.aiokafka.producer import AIONodeProducer

__all__ = ["AIOKafkaNode", "AIONodeConsumer", "AIONodeProducer"]
