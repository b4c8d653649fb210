"""Run the command line with `python -m sampling`."""

from sampling.cli import main

if __name__ == "__main__":
    main()
