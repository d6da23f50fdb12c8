# shellcheck shell=sh
# shellcheck disable=SC2034,SC2154
# Sourced by tools/gpu-check and tools/bench-pair, which set mk_name to their own name. They run where there is a
# driver and perhaps nothing else, so sh, sed and awk have to do.

# mk_misused TEXT: what is wrong with the arguments; exit code 2.
mk_misused() {
  echo "$mk_name: $*; see $mk_name --help" >&2
  exit 2
}

# mk_failed TEXT: why nothing can be run; exit code 1.
mk_failed() {
  echo "$mk_name: $*" >&2
  exit 1
}

# mk_check_device NAME: one as --device takes it.
mk_check_device() {
  case $1 in
    cuda) return ;;
    cuda: | cuda:*[!0-9]*) ;;
    cuda:*) return ;;
  esac
  mk_misused "--device: '$1' names no GPU; give cuda or cuda:N"
}

# mk_check_count FLAG TEXT: a whole number from 1 to 999.
mk_check_count() {
  case $2 in
    '' | *[!0-9]* | 0* | ????*) mk_misused "$1: '$2' is no number from 1 to 999" ;;
  esac
}

# mk_choose ALL LIST: those of ALL that stand in LIST, which has commas; in the order of ALL. A name that is not there
# is misuse.
mk_choose() {
  for mk_word in $(printf '%s\n' "$2" | tr ',' ' '); do
    case " $1 " in
      *" $mk_word "*) ;;
      *) mk_misused "--only: there is no '$mk_word'; there are: $1" ;;
    esac
  done
  for mk_word in $1; do
    case ",$2," in
      *",$mk_word,"*) printf '%s ' "$mk_word" ;;
    esac
  done
}

# mk_open_logs FOLDER: makes it, or a new one where it has no name; its absolute path in $logs.
mk_open_logs() {
  if [ -n "$1" ]; then
    mkdir -p -- "$1" && logs=$(cd -- "$1" && pwd)
  else
    logs=$(mktemp -d "${TMPDIR:-/tmp}/mkvm-${mk_name##*/}-XXXXXX")
  fi || mk_failed "no folder for logs; name one with --logs DIR"
}

# mk_print_gpu DEVICE: its name and driver, where there is a nvidia-smi to ask.
mk_print_gpu() {
  case $1 in
    cuda:*) mk_index=${1#cuda:} ;;
    *) mk_index=0 ;;
  esac
  if ! command -v nvidia-smi >/dev/null 2>&1; then
    echo "GPU: $1; without nvidia-smi its name and driver are not known"
  elif mk_line=$(nvidia-smi -i "$mk_index" --query-gpu=name,driver_version --format=csv,noheader 2>&1); then
    printf '%s\n' "$mk_line" | sed 's/^\(.*\), /GPU: \1, driver /;q'
  else
    printf 'GPU: %s; nvidia-smi does not know it: %s\n' "$1" "$(printf '%s\n' "$mk_line" | sed 1q)"
  fi
}

# mk_print_version WHAT PROGRAM: prints WHAT and the version of PROGRAM, which has to run on this machine.
mk_print_version() {
  mk_line=$("$2" --version 2>&1) || mk_failed "$2 does not run here: $mk_line"
  printf '%s: %s, %s\n' "$1" "$mk_line" "$2"
}

# mk_bench_value KEY FILE: the value under that key in the first object of what `mkvm bench -o json` printed; fails
# where there is none, or null.
mk_bench_value() {
  awk -v key="\"$1\":" '
    /^}/ { exit }
    $1 == key { value = $2; sub(/,$/, "", value) }
    END { if (value !~ /^-?[0-9]/) exit 1; print value }' "$2"
}

# mk_show_end LOG: its last lines, moved in.
mk_show_end() { tail -n 20 -- "$1" | sed 's/^/    /'; }

# mk_on_signal FUNCTION: what a signal does before it ends the script as usual. A step that runs has had the same
# signal from the terminal.
mk_on_signal() {
  for mk_signal in HUP INT TERM; do
    # shellcheck disable=SC2064
    trap "trap - $mk_signal; $1; kill -s $mk_signal $$" $mk_signal
  done
}
