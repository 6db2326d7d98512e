"""`python -m pipeline`: the same as the console script."""

from pipeline.cli import main

main()
