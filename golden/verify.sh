#!/usr/bin/env bash
# golden/verify.sh [BINARY]: runs every command of golden/commands.txt and compares what it prints, byte for byte, with
# the stored output. BINARY is build/touchstone when not given. One line per case, then a summary.
# golden/commands.txt: one case a line, `output file<TAB>command line`; output files are relative to golden/, command
# lines start with `touchstone` and run in the folder of the checkout. Empty lines and lines that start with # are
# skipped. Exit: 0 all equal, 1 a case differs, 2 bad use or a list that cannot be read, 3 nothing to compare.
set -uo pipefail
binary=$(realpath -m "${1:-$(dirname "${BASH_SOURCE[0]}")/../build/touchstone}")
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
export LC_ALL=C

if [ ! -x "$binary" ]; then
    printf 'golden/verify.sh: no program at %s; build it first: bash cli/quickstart.sh\n' "$binary" >&2
    exit 2
fi
if [ ! -r golden/commands.txt ]; then
    printf 'golden/verify.sh: cannot read golden/commands.txt\n' >&2
    exit 3
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
ln -s "$binary" "$scratch/touchstone"
PATH=$scratch:$PATH

equal=0 different=0 number=0
: >"$scratch/listed"
# verify OUTPUT COMMAND: 0 when the command succeeds and prints what is stored.
verify() {
    local stored=golden/$1 status=0
    if [ ! -f "$stored" ]; then
        printf 'MISSING   %s: listed, but not stored\n' "$1"
        return 1
    fi
    bash -c "$2" >"$scratch/out" 2>"$scratch/err" </dev/null || status=$?
    if [ "$status" -ne 0 ]; then
        printf 'FAILED    %s: %s (exit %d)\n' "$1" "$2" "$status"
        head -n 5 "$scratch/err"
        return 1
    fi
    if ! cmp -s "$stored" "$scratch/out"; then
        printf 'DIFFERENT %s: %s\n' "$1" "$2"
        diff -u --label "stored $1" --label "printed now" "$stored" "$scratch/out" | head -n 20
        return 1
    fi
    printf 'equal     %s: %s\n' "$1" "$2"
}
while IFS= read -r line || [ -n "$line" ]; do
    number=$((number + 1))
    case $line in '' | '#'*) continue ;; esac
    output=${line%%$'\t'*} command=${line#*$'\t'}
    if [ "$output" = "$line" ] || [ "${command#touchstone }" = "$command" ]; then
        printf 'golden/commands.txt:%d: expected `output file<TAB>touchstone ...`, found: %s\n' "$number" "$line" >&2
        exit 2
    fi
    printf '%s\n' "$output" >>"$scratch/listed"
    if verify "$output" "$command"; then equal=$((equal + 1)); else different=$((different + 1)); fi
done <golden/commands.txt

# A stored output that no line mentions would never be verified.
while IFS= read -r stored; do
    if ! grep -qxF "$stored" "$scratch/listed"; then
        printf 'UNLISTED  %s: stored, but not in golden/commands.txt\n' "$stored"
        different=$((different + 1))
    fi
done < <(cd golden && find kv layers replay -type f 2>/dev/null | sort)

printf 'golden: %d equal, %d not\n' "$equal" "$different"
if [ "$different" -ne 0 ]; then exit 1; fi
if [ "$equal" -eq 0 ]; then exit 3; fi
