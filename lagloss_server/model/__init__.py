"""Definitions of pipelines, the graph they make, and results of windows."""
