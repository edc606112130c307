"""`python -m delegate`: the command line."""

from delegate.cli.main import main

if __name__ == "__main__":
    main()
