#!/usr/bin/env bash
# Print the BLEU of the validation set for numbers of averaged checkpoints and length penalties.
#
#     examples/multi30k/choose.sh runs/multi30k-en-de-cased data/multi30k-en-de/valid.de
#     examples/multi30k/choose.sh runs/multi30k-en-de-lowercased data/…/valid.de --tokenize none
#
# Arguments after the reference are passed to tfm score. Averages are kept in RUN/average-N.
set -euo pipefail
run=$1 reference=$2
for last in ${AVERAGES:-5 10 20}; do
    model=$run/average-$last
    [ -d "$model" ] || tfm average "$run" --last "$last" --out "$model"
    for penalty in ${PENALTIES:-0.6 1 1.5 2}; do
        bleu=$(tfm generate "$model" --split valid --beam "${BEAM:-5}" --length-penalty "$penalty" |
            tfm score --metric bleu --reference "$reference" "${@:3}")
        echo "average of $last, length penalty $penalty: $bleu"
    done
done
