"""`python -m meshflow`: the `meshflow` command."""

from meshflow.cli import main

if __name__ == "__main__":
    main()
