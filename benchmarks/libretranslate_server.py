"""Run LibreTranslate's server with one package, without a network; benchmarks/serving.py starts it.

    python benchmarks/libretranslate_server.py translate.argosmodel --port 5000 --threads 1

The models that split sentences must be downloaded; a regular expression splits them instead, which
takes less time.
"""

import argparse
import os
import re
import sys
import tempfile
import zipfile


def main() -> None:
    """Run the server."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("package")
    parser.add_argument("--port", required=True)
    parser.add_argument("--threads", required=True, help="with which CTranslate2 computes")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(arguments.package) as package:
            package.extractall(folder)
        os.environ |= {
            "ARGOS_PACKAGES_DIR": folder,
            "ARGOS_COMPUTE_TYPE": "float32",
            "ARGOS_INTER_THREADS": "1",
            "ARGOS_INTRA_THREADS": arguments.threads,
            "OMP_NUM_THREADS": arguments.threads,
        }
        import argostranslate.sbd
        from libretranslate import init
        from libretranslate.main import main as serve

        sentences = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
        argostranslate.sbd.MiniSBDSentencizer.split_sentences = lambda _, text: sentences.split(
            text
        )
        init.check_and_install_models = lambda **_: None  # it would look for packages to download
        sys.argv = [
            sys.argv[0],
            "--host",
            "127.0.0.1",
            "--port",
            arguments.port,
            "--disable-web-ui",
        ]
        serve()


if __name__ == "__main__":
    main()
