"""HTTP intake: beacons of services that do without the SDK, put on the log through it."""
