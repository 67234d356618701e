"""Taps: beacons of pipelines whose nodes send none, made of the topics' records and the consumer groups' commits."""
