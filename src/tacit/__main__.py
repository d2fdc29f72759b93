"""Makes `python -m tacit` run the `tacit` command."""

from tacit.cli.app import main

if __name__ == "__main__":
    main()
