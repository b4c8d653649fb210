"""`python -m sampling` is the same as `sampling`."""

from sampling.cli import main

if __name__ == "__main__":
    main()
