#!/bin/sh
# check_pages.sh: what can be seen of the Markdown pages without running anything: links lead somewhere, headings that
# they name included; README.md and docs/ARCHITECTURE.md keep their lengths; a page of results begins with a summary of
# five lines at most; docs/index.md and mkdocs.yml name every page.
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
done
for page in docs/*.md docs/pipelines/*.md; do
  name=${page#docs/}
  [ "$name" != index.md ] || continue
  grep -q "($name)" docs/index.md || wrong "docs/index.md does not name $name"
  grep -q ": $name\$" mkdocs.yml || wrong "mkdocs.yml does not name $name"
done
[ "$bad" -eq 0 ]
