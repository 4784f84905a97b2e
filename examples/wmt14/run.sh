#!/usr/bin/env bash
# The experiments of "Attention Is All You Need" on WMT14, from the archives to both BLEU scores.
#
#     examples/wmt14/run.sh base                  # or big
#     PAIR=en-fr examples/wmt14/run.sh big
#     MIRROR=/data/archives examples/wmt14/run.sh base
#     GPUS=8 examples/wmt14/run.sh base           # or auto; else one
#
# Arguments after the name of the model are passed to tfm train: examples/wmt14/run.sh big --shard
#
# It can be stopped at any time; the same command resumes it.
#
#     SMOKE=1 examples/wmt14/run.sh base
#
# runs the same commands in minutes on two CPU cores, in the folder smoke/: with models of full size,
# but a few steps on small batches, and the first 100 test sentences. The archives are those of MIRROR,
# or generated ones. This shows that all parts work; its BLEU is meaningless.
set -euo pipefail
arch=${1:-base} pair=${PAIR:-en-de} smoke=${SMOKE:-}
here=$(cd "$(dirname "$0")" && pwd)
config=$here/$arch.toml
[ ! -f "$here/$arch-$pair.toml" ] || config=$here/$arch-$pair.toml
mirror=${MIRROR:-} data=data/wmt14-$pair run=runs/wmt14-$pair-$arch
# The paper's 10 minutes between checkpoints, at its 0.4 s per step of base and 1.0 s of big. Counted
# in steps, so that every machine averages the same ones.
interval=1500
[ "$arch" != big ] || interval=600
prepare=() train=("${@:2}") lines=3003
case $mirror in "" | *://*) ;; *) mirror=$(cd "$mirror" && pwd) ;; esac

if [ -n "$smoke" ]; then
    mkdir -p smoke && cd smoke
    pieces=8000
    if [ -z "$mirror" ]; then
        pieces=1000 mirror=$PWD/archives
        [ -d archives ] || "$here/smoke/mirror.sh" archives
    fi
    prepare=(--no-verify --vocab-size "$pieces")
    interval=5
    train+=(--max-steps 10 --batch-tokens 250 --warmup-steps 10)
    train+=(--log-steps 1 --validation-beam 0 --best-metric loss)
    lines=100
fi

tfm prepare "wmt14-$pair" --out "$data" ${mirror:+--mirror "$mirror"} ${prepare[@]+"${prepare[@]}"}
tfm train "$data" --config "$config" --run "$run" --checkpoint-steps $interval ${GPUS:+--gpus "$GPUS"} \
    ${train[@]+"${train[@]}"}
tfm average "$run"
head -n "$lines" "$data/test.en" > "$run/test.en"
head -n "$lines" "$data/test.${pair#en-}" > "$run/test.${pair#en-}"
tfm generate "$run" --input "$run/test.en" --beam 4 --length-penalty 0.6 --max-extra-length 50 |
    tee "$run/translations.${pair#en-}" |
    tfm score --paper --reference "$run/test.${pair#en-}"
