#!/bin/sh
# check_header.sh CC CXX LIBRARY: the public header by itself, as C and as C++, without a warning; a C++ program that
# links LIBRARY and runs; what LIBRARY shows is what the header declares, and its soname. Without a C++ compiler (CXX
# empty) that part is skipped (77).
set -eu
cd "$(dirname "$0")/../.."
cc=$1
cxx=$2
library=$3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
flags="-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror -Iinclude"

fail() {
  echo "$*" >&2
  exit 1
}

lines=$(wc -l <include/mkvm.h)
[ "$lines" -le 360 ] || fail "include/mkvm.h has $lines lines; 360 are meant to be enough"
lines=$(wc -l <examples/generate.c)
[ "$lines" -le 60 ] || fail "examples/generate.c has $lines lines; 60 are meant to be enough"
lines=$(wc -l <examples/serve.c)
[ "$lines" -le 90 ] || fail "examples/serve.c has $lines lines; 90 are meant to be enough"

# Once alone, and as a whole: mkvm.h names every header that it needs.
echo '#include <mkvm.h>
#include <mkvm.h>
int nothing(void) { return 0; }' >"$folder/alone.c"
for standard in c99 c11 c17; do
  # shellcheck disable=SC2086
  "$cc" -std=$standard $flags -c -o "$folder/alone.o" "$folder/alone.c"
  # shellcheck disable=SC2086
  "$cc" -std=$standard $flags -c -o "$folder/alone.o" examples/generate.c
  # shellcheck disable=SC2086
  "$cc" -std=$standard $flags -c -o "$folder/alone.o" examples/serve.c
done

declared=$(sed -n '/^MKVM_API/,/;/p' include/mkvm.h | tr '\n' ' ' | tr ';' '\n' |
  sed -n 's/.*MKVM_API[^(]*[ *]\(mkvm_[a-z_]*\)(.*/\1/p' | sort)
shown=$(nm -D --defined-only "$library" | awk '{ print $3 }' | sort)
[ "$declared" = "$shown" ] || fail "the header declares:
$declared
$library shows:
$shown"
readelf -d "$library" | grep -q 'SONAME.*\[libmkvm\.so\.0\]' || fail "$library: its soname is not libmkvm.so.0"

[ -n "$cxx" ] || exit 77
cat >"$folder/program.cc" <<'END'
#include <mkvm.h>
#include <cstdio>
#include <cstring>

static int on_token(void *user, const mkvm_token *token) {
  *static_cast<size_t *>(user) += token->length;
  return 0;
}

int main() {
  size_t length = 0;
  mkvm_options options;
  mkvm_request request;
  mkvm_sampling sampling;
  mkvm_engine *engine = nullptr;
  mkvm_options_init(&options);
  mkvm_sampling_init(&sampling);
  mkvm_request_init(&request);
  options.device = "cpu";
  request.text = "The";
  request.text_length = 3;
  request.max_tokens = 4;
  request.sampling = &sampling;
  request.on_token = on_token;
  request.user = &length;
  if (mkvm_open("models/demo", &options, &engine) != MKVM_OK || mkvm_submit(engine, &request, nullptr) != MKVM_OK ||
      mkvm_run(engine) != MKVM_OK) {
    std::fprintf(stderr, "%s\n", mkvm_message());
    return 1;
  }
  mkvm_info info;
  mkvm_stats stats;
  bool good = mkvm_get_info(engine, &info) == MKVM_OK && mkvm_get_stats(engine, &stats) == MKVM_OK &&
              stats.tokens == 4 && std::strcmp(info.device, "cpu") == 0 && length != 0;
  return good && mkvm_close(engine) == MKVM_OK ? 0 : 1;
}
END
for standard in c++11 c++20; do
  # shellcheck disable=SC2086
  "$cxx" -std=$standard $flags -o "$folder/program" "$folder/program.cc" "$library" -Wl,-rpath,"$(dirname "$library")"
  "$folder/program"
done
