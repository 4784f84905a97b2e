#!/usr/bin/env bash
# Multi30k English-German with a model of 2.6 million parameters, from raw text to BLEU.
#
#     examples/multi30k/run.sh cased            # raw text
#     examples/multi30k/run.sh lowercased       # tokenized and lowercased, as Wu et al. (2021) score it
#     MIRROR=/data/multi30k examples/multi30k/run.sh cased
#
# Arguments after the kind of text are passed to tfm train: examples/multi30k/run.sh cased --seed 2
#
# It can be stopped at any time; the same command resumes it.
set -euo pipefail
text=${1:-cased}
here=$(cd "$(dirname "$0")" && pwd)
data=data/multi30k-en-de run=runs/multi30k-en-de-$text
train=("${@:2}") score=()

tfm prepare multi30k-en-de --out "$data" ${MIRROR:+--mirror "$MIRROR"}
if [ "$text" = lowercased ]; then
    raw=$data data=$data-lowercased
    tokens=$data/tokenized
    mkdir -p "$tokens"
    for file in {train,valid,test}.{en,de}; do
        python "$here/tokenize_text.py" "${file#*.}" < "$raw/$file" > "$tokens/$file"
    done
    tfm prepare --train "$tokens/train.en" "$tokens/train.de" \
        --valid "$tokens/valid.en" "$tokens/valid.de" --test "$tokens/test.en" "$tokens/test.de" \
        --vocab-size 10000 --out "$data" --no-drop-duplicates --no-drop-copies --max-length-ratio 0
    score=(--tokenize none)
fi
tfm train "$data" --config "$here/multi30k.toml" --run "$run" ${train[@]+"${train[@]}"}
tfm average "$run"
tfm generate "$run" --split test --beam 5 | tee "$run/translations.de" |
    tfm score --reference "$data/test.de" ${score[@]+"${score[@]}"}
[ "$text" = lowercased ] ||
    tfm score --metric paper-bleu --lowercase --split-compounds no --reference "$data/test.de" \
        < "$run/translations.de"
