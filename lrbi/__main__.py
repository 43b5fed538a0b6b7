"""``python -m lrbi``: the command."""

from lrbi.cli import main

if __name__ == "__main__":
    main()
