"""Consumer groups: their progress, velocity and distance to retention, from brokers and in PostgreSQL."""
