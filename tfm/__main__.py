"""The entry point of the `tfm` script and of `python -m tfm`, which `torchrun … -m tfm` uses."""

import os
import sys


def main() -> None:
    """Run the command line; answer Ctrl-C in one line even while modules are still loading."""
    try:
        from tfm.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("tfm: stopped\n")
        sys.stderr.flush()
        os._exit(130)


if __name__ == "__main__":
    main()
