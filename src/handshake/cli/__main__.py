"""Run the command as `python -m handshake.cli`."""

from handshake.cli import main

if __name__ == "__main__":
    main()
