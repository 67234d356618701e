"""HTTP intake of beacons, blocks and reports, for services that do without a Kafka client; definitions and tokens."""
