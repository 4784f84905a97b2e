"""Entry point of `python -m tfm`, which `torchrun … -m tfm train` uses."""

from tfm.cli.main import main

if __name__ == "__main__":
    main()
