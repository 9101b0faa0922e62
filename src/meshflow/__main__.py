"""Entry point of `python -m meshflow`, which runs the `meshflow` command."""

from meshflow.cli import main

if __name__ == "__main__":
    main()
