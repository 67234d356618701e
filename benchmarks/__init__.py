"""Benchmarks: each figure beside its reference from the same run."""
