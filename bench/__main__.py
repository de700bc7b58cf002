"""`python -m bench` is the command `bench`."""

from bench.cli import main

if __name__ == "__main__":
    main()
