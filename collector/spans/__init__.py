"""OpenTelemetry spans as beacons."""
