"""`python -m tidegate` is the same as `tidegate`."""

from tidegate.cli.main import run

if __name__ == "__main__":
    run()
