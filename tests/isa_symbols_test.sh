#!/usr/bin/env bash
# tests/isa_symbols_test.sh OBJECT...: the objects of files compiled once per instruction set define nothing that another
# object could define too (weak symbols: inline functions and templates with a body of their own). The linker keeps one
# copy of those for everybody, and it could be the one that needs AVX-512.
set -euo pipefail
objects=()
for list in "$@"; do
    IFS=';' read -ra files <<<"$list"
    objects+=("${files[@]}")
done
if [ ${#objects[@]} -lt 3 ]; then
    printf 'isa_symbols_test: %d objects; expected at least the three of one set\n' ${#objects[@]}
    exit 1
fi
if shared=$(nm -C --defined-only -A "${objects[@]}" | grep -E ' [WVu] '); then
    printf 'defined in an object with vector instructions, and possibly elsewhere:\n%s\n' "$shared"
    exit 1
fi
printf '%d objects define nothing weak\n' ${#objects[@]}
