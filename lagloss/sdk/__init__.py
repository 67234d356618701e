"""The emitter's parts: from a host's calls to blocks, and from blocks to acknowledged records and reports."""
