#!/usr/bin/env bash
# Multi30k with a model of 2 million parameters, from raw text to BLEU.
#
#     examples/multi30k/run.sh cased            # raw text
#     examples/multi30k/run.sh lowercased       # tokenized and lowercased, as Wu et al. (2021) score it
#     PAIR=fr-en MIRROR=/data/multi30k examples/multi30k/run.sh cased
#     ARCH=small examples/multi30k/run.sh cased # a preset instead of multi30k.toml
#
# PAIR is en-de, de-en, en-fr or fr-en. Arguments after the kind of text are passed to tfm train:
# examples/multi30k/run.sh cased --seed 2
#
# It can be stopped at any time; the same command resumes it.
set -euo pipefail
text=${1:-cased} pair=${PAIR:-en-de}
source=${pair%-*} target=${pair#*-}
here=$(cd "$(dirname "$0")" && pwd)
run=runs/multi30k-$pair-$text settings=(--config "$here/multi30k.toml") train=("${@:2}") score=()
[ -z "${ARCH:-}" ] || run+=-$ARCH settings=(--arch "$ARCH")

# The recipes have English on the left.
case $pair in
    en-de | de-en) recipe=multi30k-en-de ;;
    en-fr | fr-en) recipe=$here/recipes/multi30k-en-fr.toml ;;
    *) echo "run.sh: PAIR is $pair: set it to en-de, de-en, en-fr or fr-en" >&2; exit 2 ;;
esac
raw=data/$(basename "$recipe" .toml)
data=$raw files=$raw vocab_size=4000
tfm prepare "$recipe" --vocab-size $vocab_size --out "$raw" ${MIRROR:+--mirror "$MIRROR"}
[ "$target" != en ] || data=data/multi30k-$pair
if [ "$text" = lowercased ]; then
    data=data/multi30k-$pair-lowercased vocab_size=10000 score=(--tokenize none)
    files=$data/tokenized
    mkdir -p "$files"
    for file in {train,valid,test}.{$source,$target}; do
        python "$here/tokenize_text.py" "${file#*.}" < "$raw/$file" > "$files/$file"
    done
fi
if [ "$data" != "$raw" ]; then
    tfm prepare --train "$files/train.$source" "$files/train.$target" \
        --valid "$files/valid.$source" "$files/valid.$target" \
        --test "$files/test.$source" "$files/test.$target" \
        --vocab-size $vocab_size --out "$data" --no-drop-duplicates --no-drop-copies --max-length-ratio 0
fi
tfm train "$data" ${settings[@]+"${settings[@]}"} --run "$run" ${train[@]+"${train[@]}"}
tfm average "$run"
tfm generate "$run" --split test --beam 5 | tee "$run/translations.$target" |
    tfm score --reference "$data/test.$target" ${score[@]+"${score[@]}"}
[ "$text" = lowercased ] ||
    tfm score --metric paper-bleu --lowercase --split-compounds no --reference "$data/test.$target" \
        < "$run/translations.$target"
