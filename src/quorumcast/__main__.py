"""`python -m quorumcast`: the command line, for when the script is not on the path."""

if __name__ == "__main__":
    from quorumcast.cli.main import run

    run()
