"""The batch reference pipeline, `scores`: S3, SNS, SQS, importers, and a job each hour. docs/batch.md describes it."""
