"""Results of windows for other systems: as metrics that Prometheus reads, and that OTLP pushes."""
