"""lagloss: how late is a streaming pipeline's data, minute by minute, and was any lost?

These names are the whole SDK. The parts of lagloss import its modules.
"""

from lagloss.kafka.lanes import KafkaLanes
from lagloss.sdk.buffer import Processing
from lagloss.sdk.emitter import Emitter, EmitterStats
from lagloss.sdk.outlets.kafka import MemoryOutlet

__version__ = "0.1.0"

__all__ = ["Emitter", "EmitterStats", "KafkaLanes", "MemoryOutlet", "Processing"]
