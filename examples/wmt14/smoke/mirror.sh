#!/usr/bin/env bash
# Fill a folder with archives that have the names and members of WMT14's, but text of the quickstart.
# The validation and test sets have as many lines as newstest2013 and newstest2014.
#
#     examples/wmt14/smoke/mirror.sh FOLDER
set -euo pipefail
mkdir -p "$(dirname "$1")"
folder=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
work=$folder.partial
rm -rf "$work"
mkdir -p "$work/members" "$work/archives"

tfm prepare numbers-en-de --text-only --out "$work/all"
mkdir "$work/text"
for language in en de; do
    sed -n '1,10000p' "$work/all/train.$language" > "$work/text/train.$language"
    sed -n '10001,13000p' "$work/all/train.$language" > "$work/text/valid.$language"
    sed -n '13001,16003p' "$work/all/train.$language" > "$work/text/test.$language"
done
cd "$work/members"
mkdir dev test-full training un

# slice NUMBER LANGUAGE: one of five parts of the training text; German replaces French.
slice() { awk -v part="$1" 'NR % 5 == part' "$work/text/train.${2/fr/de}"; }

# sgml SIDE LANGUAGE: the test text in WMT's SGML format.
sgml() {
    echo "<${1}set setid=\"newstest2014\" srclang=\"any\">"
    awk '{ printf "<seg id=\"%d\">%s</seg>\n", NR, $0 }' "$work/text/test.${2/fr/de}"
    echo "</${1}set>"
}

for pair in de-en fr-en; do
    for language in en "${pair%-en}"; do
        slice 0 "$language" > "training/europarl-v7.$pair.$language"
        slice 1 "$language" > "commoncrawl.$pair.$language"
        slice 2 "$language" > "training/news-commentary-v9.$pair.$language"
        slice 3 "$language" > "un/undoc.2000.$pair.$language"
        slice 4 "$language" | gzip > "giga-fren.release2.fixed.$language.gz"
        cp "$work/text/valid.${language/fr/de}" "dev/newstest2013.$language"
    done
    target=${pair%-en}
    sgml src en > "test-full/newstest2014-${pair/-/}-src.en.sgm"
    sgml ref "$target" > "test-full/newstest2014-${pair/-/}-ref.$target.sgm"
done

pack() { tar -czf "$work/archives/$1" "${@:2}"; }
pack training-parallel-europarl-v7.tgz training/europarl-v7.*
pack training-parallel-commoncrawl.tgz commoncrawl.*
pack training-parallel-nc-v9.tgz training/news-commentary-v9.*
pack training-parallel-un.tgz un/undoc.2000.fr-en.*
pack dev.tgz dev
pack test-full.tgz test-full
tar -cf "$work/archives/training-giga-fren.tar" giga-fren.*
mv "$work/archives" "$folder"
rm -rf "$work"
