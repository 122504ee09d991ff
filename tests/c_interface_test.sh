#!/usr/bin/env bash
# tests/c_interface_test.sh LIBRARY COMPILER [FLAG...]: touchstone.h is C11, a C program links with the library and
# gets what it should, and the library shows nothing but the functions of the header.
set -euo pipefail
library=$1
compiler=("${@:2}")
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

"${compiler[@]}" -x c -std=c11 -Wall -Wextra -Wpedantic -Werror "$root/tests/c_interface_example.c" -I"$root/golden" \
    -x none -L"$(dirname "$library")" -ltouchstone -Wl,-rpath,"$(dirname "$library")" -o "$scratch/example"
"$scratch/example" | tee "$scratch/out"
grep -q '^accumulator: [1-9][0-9]* of 80 elements differ, 0 are outside fp32_row$' "$scratch/out"

nm -D --defined-only "$library" | awk '{ print $3 }' | sed 's/@.*//' | LC_ALL=C sort >"$scratch/shown"
sed -n 's/.*[ *]\(touchstone_[a-z_]*\)(.*/\1/p' "$root/golden/touchstone.h" | LC_ALL=C sort -u >"$scratch/declared"
if ! diff -u "$scratch/declared" "$scratch/shown"; then
    printf 'c_interface_test: declared (-) and shown (+) functions are not the same\n' >&2
    exit 1
fi
printf '%d functions\n' "$(wc -l <"$scratch/declared")"
