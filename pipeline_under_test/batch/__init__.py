"""The second reference pipeline, `scores`: files land in S3, importers take them in, an hourly job aggregates."""
