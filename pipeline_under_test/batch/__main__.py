"""`python -m pipeline_under_test.batch`."""

from pipeline_under_test.batch.cli import main

if __name__ == "__main__":
    main()
