"""A step of a batch pipeline as a node: `FileNode`, and the buckets and queues that it wraps."""

from lagloss.files.node import FileNode, NodeBucket
from lagloss.files.notifications import BadNotification, StoredObject, objects_in, time_in_name
from lagloss.files.queue import NodeQueue, QueuedFile

__all__ = [
    "BadNotification",
    "FileNode",
    "NodeBucket",
    "NodeQueue",
    "QueuedFile",
    "StoredObject",
    "objects_in",
    "time_in_name",
]
