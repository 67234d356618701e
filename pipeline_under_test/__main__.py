"""`python -m pipeline_under_test`: the same as the command `pipeline`."""

from pipeline_under_test.cli import main

if __name__ == "__main__":
    main()
