#!/bin/sh
# check_pages.sh: what can be seen of the Markdown pages without running anything: links lead somewhere, headings that
# they name included; README.md and docs/ARCHITECTURE.md keep their lengths; a page of results begins with a summary of
# five lines at most; docs/index.md and mkdocs.yml name every page. And what can be seen of all text so: lines have at
# most 120 columns, and "after" is said where time or order is meant.
set -u
export LC_ALL=C
cd "$(dirname "$0")/../.." || exit 2
bad=0
wrong() {
  echo "$*"
  bad=1
}
pages=$(find . -name '*.md' -not -path './build*' -not -path './out/*' | sed 's|^\./||' | sort)

# The anchors of a page, as GitHub makes them.
anchors() {
  awk '/^ *```/ { code = !code } !code && /^#+ / {
    sub(/^#+ /, ""); $0 = tolower($0)
    gsub(/\]\([^)]*\)/, ""); gsub(/[^a-z0-9 _-]/, ""); gsub(/ /, "-")
    print }' "$1"
}

for page in $pages; do
  folder=$(dirname "$page")
  awk '/^ *```/ { code = !code } !code && !/^    / { gsub(/`[^`]*`/, ""); print }' "$page" | tr '\n' ' ' |
    grep -o '](\([^) ]*\))' | sed 's/^](//; s/)$//' | sort -u >"${TMPDIR:-/tmp}/mk-links-$$"
  while read -r link; do
    case $link in
      http://* | https://* | mailto:*) continue ;;
    esac
    path=${link%%#*}
    anchor=
    [ "$link" = "$path" ] || anchor=${link#*#}
    to=$page
    [ -z "$path" ] || to=$folder/$path
    [ -e "$to" ] || { wrong "$page: $link leads nowhere" && continue; }
    [ -z "$anchor" ] || anchors "$to" | grep -qx -- "$anchor" || wrong "$page: $link: $to has no such heading"
  done <"${TMPDIR:-/tmp}/mk-links-$$"
  rm -f "${TMPDIR:-/tmp}/mk-links-$$"
done

words() { [ "$(wc -w <"$1")" -le "$2" ] || wrong "$1 has $(wc -w <"$1") words; $2 are meant to be enough"; }
words README.md 900
words docs/ARCHITECTURE.md 1900

for page in docs/results/*.md; do
  [ "$page" != docs/results/index.md ] || continue
  lines=$(awk 'NR > 2 { if ($0 == "") exit; print }' "$page" | wc -l)
  awk 'NR == 3 { exit !/^\*\*Summary\.\*\*/ }' "$page" || wrong "$page does not begin with a summary"
  [ "$lines" -le 5 ] || wrong "$page: its summary has $lines lines; 5 are meant to be enough"
  grep -q "($(basename "$page"))" docs/results/index.md || wrong "docs/results/index.md does not name $page"
  grep -q ": ${page#docs/}\$" mkdocs.yml || wrong "mkdocs.yml does not name $page"
done
for page in docs/*.md docs/pipelines/*.md; do
  name=${page#docs/}
  [ "$name" != index.md ] || continue
  grep -q "($name)" docs/index.md || wrong "docs/index.md does not name $name"
  grep -q ": $name\$" mkdocs.yml || wrong "mkdocs.yml does not name $name"
done

# Every file of the project; without git all but what builds leave.
files() {
  git ls-files 2>/dev/null | grep . ||
    find . -type f -not -path './.*' -not -path './build*' -not -path './out/*' | sed 's|^\./||'
}
# at_most N WHAT: the lines that come in are N at most, else they are shown.
at_most() {
  found=$(cat)
  count=$(printf '%s' "$found" | grep -c '')
  [ "$count" -le "$1" ] || wrong "$count lines $2; at most $1 may:
$found"
}
# No line has more than 120 columns but tables, links and code of a page, and test data: programs with a fault,
# texts and patterns of tokenizers. A byte of UTF-8 that goes on with a character is no column.
# shellcheck disable=SC2016
at_most 0 "have more than 120 columns" <<END
$(files | grep -E '\.(c|h|cu|cuh|def|sh|cmake|py|js|css|html|md|yml)$|^(tools|docs/api)/[a-z-]*$|CMakeLists.txt|/run$' |
  grep -vE '^tests/(support/faults.def|text/make_tokenizer_golden.py)' | tr '\n' '\0' |
  xargs -0 awk '
    FNR == 1 { page = FILENAME ~ /\.md$/; code = 0 }
    page && /^ *```/ { code = !code }
    { line = $0; gsub(/[\200-\277]/, "", line) }
    length(line) > 120 && !(page && (code || /^(\||    )/ || /^!?\[[^]]*\]\([^)]*\)$/)) {
      print FILENAME ":" FNR ": " substr($0, 1, 60) "..." }')
END
# The word is right where one thing stands in front of another, as a load balancer does. Some data has it, too.
word=behind
at_most 30 "have the word \"$word\"" <<END
$(files | grep -vx CHANGELOG.md | tr '\n' '\0' | xargs -0 grep -nwiI "$word" -- /dev/null | cut -c 1-120)
END
[ "$bad" -eq 0 ]
