"""The pipeline as processes: started, looked after, scaled, broken on purpose, and ended."""
