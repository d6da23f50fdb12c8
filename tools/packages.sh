# shellcheck shell=sh
# Sourced by the scripts beside it. mk_need PACKAGE... makes sure that these Debian packages are installed: as root or
# with sudo it installs what is missing, otherwise it names the packages and fails. Asks nothing when nobody can answer.

mk_missing_packages() {
  for mk_package in "$@"; do
    case $(dpkg-query -W -f='${Status}' "$mk_package" 2>/dev/null) in
      *" installed") ;;
      *) printf '%s ' "$mk_package" ;;
    esac
  done
}

mk_need() {
  if ! command -v dpkg-query >/dev/null 2>&1 || ! command -v apt-get >/dev/null 2>&1; then
    echo "This is not Debian: what these packages hold is expected to be here: $*" >&2
    return 0
  fi
  mk_missing=$(mk_missing_packages "$@")
  [ -n "$mk_missing" ] || return 0
  mk_missing=${mk_missing% }
  if [ "$(id -u)" -eq 0 ]; then
    mk_root="env"
  elif command -v sudo >/dev/null 2>&1 && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
    mk_root=sudo
  else
    echo "These packages are missing, and installing them takes root. As root, run:" >&2
    echo "  apt-get install --no-install-recommends $mk_missing" >&2
    return 1
  fi
  echo "Installing: $mk_missing" >&2
  # shellcheck disable=SC2086
  { $mk_root apt-get -q -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 update &&
    $mk_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 \
      -o Dpkg::Options::=--force-confold install --no-install-recommends $mk_missing; } </dev/null >"$mk_log" 2>&1 || {
    cat "$mk_log" >&2
    echo "apt-get could not install: $mk_missing" >&2
    return 1
  }
}

# What every build needs.
mk_build_packages="gcc libc6-dev cmake ninja-build pkg-config"
mk_build_packages="$mk_build_packages libjansson-dev libpcre2-dev libutf8proc-dev zlib1g-dev libedit-dev libevent-dev"

# What the tests of the library need besides: the header as C++, and packages.
mk_library_packages="g++ dpkg-dev"

# What tools/fuzz needs besides: libFuzzer comes with clang's runtime.
mk_fuzz_packages="clang libclang-rt-dev"

# What the tests of a trace's page and of Perfetto's file need besides; where they are missing, those tests are skipped.
mk_page_packages="chromium fonts-dejavu-core protobuf-compiler"

# What tools/check-api needs.
mk_api_packages="doxygen"

# What tools/check-clients needs besides.
mk_client_packages="curl python3-venv ca-certificates"

# What tools/check-replicas needs besides.
mk_replica_packages="curl haproxy systemd"
