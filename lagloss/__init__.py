"""lagloss: how late is a streaming pipeline's data, minute by minute, and was any lost?

These names are the whole SDK. The parts of lagloss import its modules.
"""

from lagloss.emitter import Emitter, EmitterStats
from lagloss.intake import Processing
from lagloss.lanes import KafkaLanes
from lagloss.outlet import MemoryOutlet

__all__ = ["Emitter", "EmitterStats", "KafkaLanes", "MemoryOutlet", "Processing"]
