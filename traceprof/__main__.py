"""`python -m traceprof` is the `traceprof` command."""

from traceprof.cli.main import main

if __name__ == "__main__":
    main()
