"""How an emitter works: from what a host's threads leave, to blocks, to acknowledged records and reports."""
