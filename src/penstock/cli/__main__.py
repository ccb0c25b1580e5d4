"""`python -m penstock.cli`, for an environment where the program itself is not installed."""

from penstock.cli import main

if __name__ == "__main__":
    main()
