"""`python -m trackbed`: the same program as the `trackbed` command (torchrun starts ranks this way)."""

from trackbed.cli import main

if __name__ == "__main__":
    main()
