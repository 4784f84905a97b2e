"""`python -m tfm`, so that `torchrun … -m tfm train` works."""

from tfm.cli.main import main

if __name__ == "__main__":
    main()
