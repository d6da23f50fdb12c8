#!/bin/sh
# run_pages.sh BUILD [PAGE...]: runs the commands of all Markdown pages of the project, or of these, with the mkvm of
# BUILD, and fails where one does. A page's commands stand in blocks that begin with ```sh; a block whose first line is
# `# needs ...` (a GPU, a licence, the network) is only looked at: commands and options must exist. So are commands that
# other tests run: `# run by SCRIPT` says so of a block, and elsewhere() of single ones. In a page DIR is the demo
# model. Blocks without `sh` may hold no command. (Sessions of a terminal, with what they print, are
# for tests/support/page.h.)
set -u
export LC_ALL=C CUDA_VISIBLE_DEVICES=
root=$(cd "$(dirname "$0")/../.." && pwd)
[ $# -ge 1 ] && [ -x "$1/mkvm" ] || {
  echo "usage: run_pages.sh BUILD [PAGE...], BUILD being a folder that has mkvm in it" >&2
  exit 2
}
build=$(cd "$1" && pwd)
shift
cd "$root" || exit 2
[ $# -gt 0 ] || set -- $(find . -name '*.md' -not -path './build*' -not -path './out/*' -not -name CHANGELOG.md | sort)
work=$(mktemp -d) || exit 2
server=
trap '[ -z "$server" ] || kill -9 "$server" 2>/dev/null; rm -rf "$work"' EXIT
trap 'exit 2' HUP INT TERM
bad=0
ran=0
looked=0
wrong() {
  echo "$place: $*"
  bad=1
}

# A file for each command: how it is to be taken, where it stands, the command.
mkdir "$work/commands" "$work/tree" "$work/tree/build"
awk -v to="$work/commands/" '
  function put() {
    file = sprintf("%s%04d", to, ++count)
    printf "%s\n%s:%d\n%s\n", how, substr(FILENAME, 1, 2) == "./" ? substr(FILENAME, 3) : FILENAME, first, command >file
    close(file)
    command = ""
  }
  function is_command(line) {
    return line ~ /^ *(build\/mkvm |tools\/[a-z-]+( |$)|cmake -|curl )/ ||
      line ~ /^ *mkvm (run|bench|serve|trace|compile|verify|disasm|asm|info|synth) /
  }
  FNR == 1 { inside = 0; command = "" }
  /^ *```/ { inside = !inside; shell = inside && /```sh *$/; how = "run"; opening = 1; next }
  !inside {
    if (/^    / && is_command($0)) {
      how = "unmarked"; first = FNR; command = $0; put()
    }
    next
  }
  !shell {
    if (/^ *\$ / || is_command($0)) {
      how = "unmarked"; first = FNR; command = $0; put()
    }
    next
  }
  opening && /^ *# needs / { how = "look"; opening = 0; next }
  opening && /^ *# run by / { how = "by " $4; opening = 0; next }
  { opening = 0 }
  command == "" && /^ *(#|$)/ { next }
  command == "" { first = FNR }
  {
    line = $0
    command = command == "" ? line : command "\n" line
    quotes = gsub(/\047/, "&", command)
    if (quotes % 2 == 0 && line !~ /\\$/) put()
  }' "$@"

for link in models docs examples tools tests; do ln -s "$root/$link" "$work/tree/$link"; done
ln -s "$build/mkvm" "$work/tree/build/mkvm"
PATH=$build:$PATH
export PATH
cd "$work/tree" || exit 2
# What pages take for granted.
echo "A database is" >question.txt
(umask 077 && echo key >keys)
mkvm run -m models/demo -p "Once upon a time" -n 4 --trace before.mktrace >/dev/null 2>&1 || exit 2
cp before.mktrace after.mktrace && cp before.mktrace bench.mktrace || exit 2

# Every --option of the words must be one of what the first file or text ($1) knows.
check_options() {
  known=$1
  for word in $(printf '%s\n' "$2" | sed 's/"[^"]*"//g' | grep -o -- '--[a-z][a-z-]*'); do
    printf '%s\n' "$known" | grep -q -- "$word\\([^a-z-]\\|$\\)" || wrong "$word is not known: $2"
  done
}

# One simple command that is not run.
look_at() {
  set -- "$1" $(printf '%s\n' "$1" | sed 's/ *#.*//; s/^ *//')
  line=$1
  shift
  case ${1-} in
    build/mkvm | build-debug/mkvm | mkvm) check_options "$(mkvm "$2" --help 2>/dev/null) --help --version" "$line" ;;
    */mkvm_gpu_tests | mkvm_gpu_tests) check_options "$(grep -h '"--' "$root"/tests/gpu/*.c)" "$line" ;;
    tools/*)
      [ -x "$root/$1" ] || wrong "there is no $1"
      check_options "$(cat "$root/$1" "$root/tests/soak"/*.c "$root/tests/mutation/main.c" 2>/dev/null)" "$line"
      ;;
    cmake | ctest)
      for preset in $(printf '%s\n' "$line" | sed -n 's/.*--preset \([a-z]*\).*/\1/p'); do
        grep -q "\"name\": \"$preset\"" "$root/CMakePresets.json" || wrong "there is no preset $preset"
      done
      ;;
    python3) [ -f "$root/$2" ] || wrong "there is no $2" ;;
    compute-sanitizer | cuda-gdb) look_at "$(printf '%s\n' "$line" | sed 's/^.*\(build[a-z-]*\/mkvm\)/\1/')" ;;
  esac
  looked=$((looked + 1))
}

# Parts of a command, one after the other.
look_at_all() {
  printf '%s\n' "$1" | sed 's/ && /\n/g; s/ | /\n/g' >"$work/parts"
  while read -r part; do look_at "$part"; done <"$work/parts"
}

# What other tests run, or nobody could: tools/test runs its own scripts, builds, and installs (install.tree,
# tools/check-packages).
elsewhere() {
  case $1 in
    tools/* | cmake\ * | cpack\ * | git\ config\ core.hooksPath\ tools/hooks*) return 0 ;;
    *) return 1 ;;
  esac
}

# serve COMMAND: a server comes up and ends when it is told to. The address is a free one.
start_server() {
  serve=$(printf '%s\n' "$1" | sed 's/ *#.*//; s|/run/mkvm.sock|'"$work"'/socket|; s/--host 0.0.0.0/--host 127.0.0.1/')
  case $serve in
    *--unix* | *--port*) ;;
    *) serve="$serve --port 0" ;;
  esac
  rm -f "$work/server.out" "$work/server.log"
  : >"$work/server.log"
  sh -c "exec $serve --device cpu" >"$work/server.out" 2>>"$work/server.log" </dev/null &
  server=$!
  for _ in $(seq 600); do
    ! grep -q 'ready: ' "$work/server.log" || return 0
    kill -0 "$server" 2>/dev/null || break
    sleep 0.1
  done
  cat "$work/server.log"
  wrong "the server did not come up: $1"
}
stop_server() {
  kill "$server" && wait "$server" || wrong "the server did not end well: $1"
  server=
}

for file in "$work"/commands/*; do
  [ -e "$file" ] || continue # pages without commands
  how=$(sed -n 1p "$file")
  place=$(sed -n 2p "$file")
  command=$(sed 1,2d "$file" | sed 's/\bDIR\b/models\/demo/g')
  case $how in
    unmarked) wrong "a command in a block that does not begin with sh: $command" && continue ;;
    look) look_at_all "$command" && continue ;;
    by*)
      by=${how#by }
      [ -x "$root/$by" ] && grep -q "$by" "$root/tools/test" "$root"/cmake/*.cmake || wrong "$by is run by nobody"
      looked=$((looked + 1))
      continue
      ;;
  esac
  # These two would build a release: what they do with one is done with the build at hand.
  case $command in
    tools/demo*) command="prompt='Free software is'; $(grep '^build/mkvm run' "$root/tools/demo")" ;;
    "tools/package build "*) command="'$root/tools/package' '$build' package" ;;
  esac
  if elsewhere "$command"; then
    look_at_all "$command"
    continue
  fi
  case $command in
    mkvm\ serve* | build/mkvm\ serve*)
      start_server "$command"
      stop_server "$command"
      ;;
    curl\ *)
      command -v curl >/dev/null 2>&1 || { echo "$place: curl is missing, so this was not run" && continue; }
      [ -n "$server" ] || start_server "mkvm serve -m models/demo"
      url=$(sed -n 's/.*http:\/\/\(127\.0\.0\.1:[0-9]*\).*/\1/p' "$work/server.out" "$work/server.log" | head -n 1)
      printf '%s\n' "$command" | sed "s/localhost:8080/$url/; s/^curl -s/curl -sf/" >"$work/script"
      sh "$work/script" >"$work/said" 2>&1 </dev/null || {
        wrong "exit code $?: $command"
        cat "$work/said" "$work/server.log"
      }
      ;;
    *)
      [ -z "$server" ] || stop_server "for curl"
      printf '%s\n' "$command" >"$work/script"
      sh -e "$work/script" >"$work/said" 2>&1 </dev/null || { wrong "exit code $?: $command" && cat "$work/said"; }
      ;;
  esac
  ran=$((ran + 1))
done
[ -z "$server" ] || stop_server "for curl"

# The hooks that CONTRIBUTING.md names.
place=tools/hooks
echo "engine: blocks are kept by hash" >"$work/subject"
"$root/tools/hooks/commit-msg" "$work/subject" 2>/dev/null || wrong "commit-msg refuses a good subject"
echo "no area, nothing" >"$work/subject"
! "$root/tools/hooks/commit-msg" "$work/subject" 2>/dev/null || wrong "commit-msg takes a subject without an area"
printf 'engine: %080d\n' 0 >"$work/subject"
! "$root/tools/hooks/commit-msg" "$work/subject" 2>/dev/null || wrong "commit-msg takes a subject of 88 characters"

echo "$ran commands run, $looked looked at"
[ "$bad" -eq 0 ]
