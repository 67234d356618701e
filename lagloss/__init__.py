"""lagloss: measure per minute how late a streaming pipeline's data is, and whether any was lost.

These names are the SDK's public interface, with the modules `asgi`, `files`, `identity`, `kafka`, `sink` and `spark`.
"""

from lagloss.kafka.lanes import KafkaLanes
from lagloss.sdk.buffer import Processing
from lagloss.sdk.emitter import Emitter, EmitterStats
from lagloss.sdk.outlets.kafka import MemoryOutlet

__version__ = "1.0.0"

__all__ = ["Emitter", "EmitterStats", "KafkaLanes", "MemoryOutlet", "Processing"]
