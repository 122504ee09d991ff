#!/usr/bin/env bash
# tests/mutants/run.sh [SCRATCH_FOLDER [NAME...]]: shows that the tests would notice. Each tests/mutants/*.patch plants
# one mistake and begins with the line `# caught by: TEST`, naming the test executable that has to fail because of it.
# The checkout is copied, every named test is shown to pass as the code stands, then each patch is applied alone, its
# test built and run. One line per mutant:
#   caught    the test failed, as it should
#   SURVIVED  the test passed: it does not notice
#   ERROR     the patch does not apply, does not build, or its test was skipped: nothing was shown
# SCRATCH_FOLDER is build/mutants when not given; NAMEs are patches without .patch, all of them when not given. Exit: 0
# all caught, 1 otherwise, 2 bad use.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
scratch=$(realpath -m "${1:-$root/build/mutants}")
tree=$scratch/tree
build=$tree/build
seconds_per_test=600
export CCACHE_BASEDIR=$tree # what the checkout's own build has compiled is found in spite of the other folder

patches=("$root"/tests/mutants/*.patch)
if [ $# -gt 1 ]; then
    patches=("${@:2}")
    patches=("${patches[@]/#/$root/tests/mutants/}")
    patches=("${patches[@]/%/.patch}")
fi
if [ ! -e "${patches[0]}" ]; then
    printf 'mutants: no tests/mutants/*.patch\n' >&2
    exit 1
fi
if ! git -c safe.directory="$root" -C "$root" rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    printf 'mutants: %s is not a git checkout, so the files to copy cannot be listed\n' "$root" >&2
    exit 2
fi

# A fresh copy of what git would carry, and a fresh build folder: an interrupted run may have left a mutant's objects.
rm -rf "$scratch" && mkdir -p "$tree" || exit 2
git -c safe.directory="$root" -C "$root" ls-files -z --cached --others --exclude-standard >"$scratch/files"
(cd "$root" && while IFS= read -r -d '' file; do [ -e "$file" ] && printf '%s\0' "$file"; done) \
    <"$scratch/files" >"$scratch/existing"
(cd "$root" && tar --null -cf - --files-from="$scratch/existing") | tar -C "$tree" -xf - || exit 2

caught_by() { sed -n '1s/^# caught by: *\([A-Za-z0-9_]*\) *$/\1/p' "$1"; }
# The copy lies inside another checkout, which git must not take for its own.
apply() { GIT_CEILING_DIRECTORIES=$scratch git -C "$tree" apply "$@"; }
build_test() { cmake --build "$build" --target "$1" >"$scratch/build.log" 2>&1; }
run_test() { timeout "$seconds_per_test" "$build/bin/$1" >"$scratch/test.log" 2>&1 </dev/null; }

generator=()
if command -v ninja >/dev/null; then generator=(-G Ninja); fi
if ! cmake -S "$tree" -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DTOUCHSTONE_CUDA=OFF \
    >"$scratch/configure.log" 2>&1; then
    cat "$scratch/configure.log"
    exit 1
fi

declare -A passes
for patch in "${patches[@]}"; do
    test=$(caught_by "$patch")
    if [ -z "$test" ] || [ -n "${passes[$test]:-}" ]; then continue; fi
    passes[$test]=no
    if ! build_test "$test"; then
        tail -n 20 "$scratch/build.log"
        printf 'mutants: %s does not build without a mutant\n' "$test"
    elif ! run_test "$test"; then
        tail -n 20 "$scratch/test.log"
        printf 'mutants: %s does not pass without a mutant\n' "$test"
    else
        passes[$test]=yes
    fi
done

# judge PATCH: applies it, builds, runs; sets verdict and detail.
judge() {
    local test status=0
    test=$(caught_by "$1")
    verdict=ERROR
    if [ -z "$test" ]; then detail='its first line is not `# caught by: TEST`'; return; fi
    if [ "${passes[$test]}" != yes ]; then detail="$test does not pass without it"; return; fi
    if ! apply "$1" 2>"$scratch/apply.log"; then
        detail="does not apply: $(head -n 1 "$scratch/apply.log")"
        return
    fi
    if ! build_test "$test"; then
        detail="does not build: $(grep -m 1 'error: ' "$scratch/build.log")"
    else
        run_test "$test" || status=$?
        case $status in
            0) verdict=SURVIVED detail="$test passed" ;;
            77) detail="$test was skipped" ;;
            124) verdict=caught detail="$test did not end in ${seconds_per_test} s" ;;
            *) verdict=caught detail="$test: $(grep -m 1 -E '^(TEST CASE|terminate|.*ERROR)' "$scratch/test.log" | tr -s ' ')" ;;
        esac
    fi
    apply -R "$1" || { printf 'mutants: %s cannot be taken back\n' "$1" >&2; exit 1; }
}

caught=0 survived=0 errors=0
for patch in "${patches[@]}"; do
    judge "$patch"
    printf '%-9s %s (%s)\n' "$verdict" "$(basename "$patch" .patch)" "$detail"
    case $verdict in
        caught) caught=$((caught + 1)) ;;
        SURVIVED) survived=$((survived + 1)) ;;
        *) errors=$((errors + 1)) ;;
    esac
done
printf 'mutants: %d caught, %d survived, %d could not be judged\n' "$caught" "$survived" "$errors"
[ $((survived + errors)) -eq 0 ]
