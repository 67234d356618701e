"""The shadow: an event-norm beside production, which reads what production's reads and whose output is not delivered.

It is how a new version of a node is tried on real traffic. In all but its input it is a pipeline of its own, named
PIPELINE-shadow: consumer group, producer, topics, dead-letter queue, ledger, and definition for lagloss (shadow.yaml).
So production is not touched by it, whatever it does; it waits for it neither at the start nor at the end.
"""

from __future__ import annotations

from pipeline_under_test.stream.kafka.topics import create_streams
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.topology import EVENT_ROUTER, dead_topic, filtered_topic, topic_of


def shadow_of(settings: ReferenceSettings) -> ReferenceSettings:
    """Return the settings of the shadow of a pipeline."""
    of_its_own = {"pipeline": f"{settings.pipeline}-shadow", "data_dir": settings.data_dir / "shadow"}
    return settings.model_copy(update=of_its_own)


def create_shadow_topics(settings: ReferenceSettings) -> None:
    """Create the topics that the shadow of this pipeline writes to.

    Raises:
        KafkaException: if the broker cannot be reached or refuses.
    """
    pipeline = shadow_of(settings).pipeline
    create_streams(
        settings.bootstrap, [topic_of(pipeline, EVENT_ROUTER), dead_topic(pipeline), filtered_topic(pipeline)]
    )
