"""Taps: beacons derived from the records of Kafka topics, for nodes that send none themselves."""
