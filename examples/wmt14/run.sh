#!/usr/bin/env bash
# WMT14 English-German as in "Attention Is All You Need", from archives to score.
#
#     examples/wmt14/run.sh base          # or big
#     MIRROR=/data/archives examples/wmt14/run.sh base
#
# It can be stopped at any time: run it again and it goes on.
set -euo pipefail
arch=${1:-base}
here=$(cd "$(dirname "$0")" && pwd)

tfm prepare wmt14-en-de ${MIRROR:+--mirror "$MIRROR"}
tfm train data/wmt14-en-de --config "$here/$arch.toml" --run "runs/wmt14-en-de-$arch"
tfm average "runs/wmt14-en-de-$arch"
tfm generate "runs/wmt14-en-de-$arch" --beam 4 --length-penalty 0.6 | tfm score
