"""`python -m handshake`: the command, where no script of that name is on the path."""

from handshake.cli.app import main

if __name__ == "__main__":
    main()
