#!/bin/sh
# check_tree.sh CMAKE BUILD: installs a build, moves the tree, and checks that it needs nothing but a C library from
# the machine that it runs on: every library that its programs and libraries name lies in it and is found there; then
# the demo model runs.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$1" --install "$2" --prefix "$folder/first" >"$folder/log" || {
  cat "$folder/log"
  exit 1
}
mkdir "$folder/some where"
mv "$folder/first" "$folder/some where/else"
tree="$folder/some where/else"

fail() {
  echo "$*" >&2
  exit 1
}

# from_system NAME: is it part of every machine that has a C library?
from_system() {
  case $1 in
    ld-linux-x86-64.so.2 | libc.so.6 | libm.so.6 | libdl.so.2 | libpthread.so.0 | librt.so.1 | libresolv.so.2) ;;
    *) return 1 ;;
  esac
}

needed() { readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]$/\1/p'; }

libraries=$(dirname "$(find "$tree" -path '*/mkvm/*.so*' -type f | head -n 1)")
[ -d "$libraries" ] || fail "the tree carries no library"
library=$(find "$tree" -name 'libmkvm.so.[0-9]')
for program in "$tree/bin/mkvm" "$tree/bin/mkvm_gpu_tests" "$library"; do
  [ -f "$program" ] || fail "$program is missing"
  for name in $(needed "$program"); do
    from_system "$name" && continue
    [ -f "$libraries/$name" ] || fail "$program needs $name, which is not in the tree"
    found=$(ldd "$program" | sed -n "s/^[[:space:]]*$name => \(.*\) (0x.*/\1/p")
    [ "$(realpath "$found")" = "$(realpath "$libraries/$name")" ] || fail "$program takes $name from $found"
  done
done
# What a library needs is looked for along its program's path too (DT_RPATH, which is why it is not DT_RUNPATH).
for program in "$tree/bin/mkvm" "$tree/bin/mkvm_gpu_tests" "$library"; do
  ldd "$program" | sed -n 's/^[[:space:]]*\([^ ]*\) => \(.*\) (0x.*/\1 \2/p' >"$folder/found"
  ldd "$program" | grep 'not found' && fail "$program lacks a library"
  while read -r name found; do
    from_system "$name" && continue
    [ "$(realpath "$found")" = "$(realpath "$libraries/$name")" ] || fail "$program takes $name from $found"
  done <"$folder/found"
done

demo="$tree/share/mkvm/models/demo"
[ -f "$tree/share/mkvm/goldens/demo.bin" ] || fail "the goldens of the GPU tests are missing"
[ -f "$tree/share/doc/mkvm/LICENSE" ] || fail "the licence is missing"
env -i "$tree/bin/mkvm" --version
env -i "$tree/bin/mkvm" run -m "$demo" -p "The" -n 4 --device cpu
