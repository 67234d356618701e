"""Random histories of a whole cluster on hosts of its own, while faults of every kind happen, alone and together."""
