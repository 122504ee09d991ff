#!/usr/bin/env bash
# tests/run.sh [all | LABEL...]: installs what is missing, builds into build/ and runs tests: without arguments the
# default ones (a few minutes), with labels those that carry one of them (slow, exhaustive, cuda, fuzz, parity, mutants,
# traces), with `all` everything. Fuzz targets are built with clang in build-fuzz/.
# Exit: 0 all passed, 1 a test or the build failed, 2 bad use or missing packages.
set -euo pipefail
touchstone_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$touchstone_root"
. cli/build.sh
. tests/totals.sh

known=(slow exhaustive cuda fuzz parity mutants traces)
joined() { local IFS='|'; printf '%s' "$*"; }

labels=()
for word in "$@"; do
    if [ "$word" = all ] && [ $# -eq 1 ]; then
        labels=("${known[@]}")
    elif [[ " ${known[*]} " == *" $word "* ]]; then
        labels+=("$word")
    else
        printf 'tests/run.sh: unknown label "%s"; expected `all` alone, or any of: %s\n' "$word" "${known[*]}" >&2
        exit 2
    fi
done
with_fuzz=no with_others=no packages=()
for label in "${labels[@]}"; do
    if [ "$label" = fuzz ]; then with_fuzz=yes packages+=(--with-clang); else with_others=yes; fi
    if [ "$label" = slow ]; then packages+=(--with-emulator); fi
done
if [ ${#labels[@]} -eq 0 ]; then with_others=yes; fi

install_packages "${packages[@]}"
status=0
rm -f build/totals-run.xml build-fuzz/totals-run.xml
if [ $with_others = yes ]; then
    build_touchstone
    selection=(-LE "^($(joined "${known[@]}"))\$")
    if [ "${1:-}" = all ]; then
        selection=()
    elif [ ${#labels[@]} -gt 0 ]; then
        selection=(-L "^($(joined "${labels[@]}"))\$")
    fi
    run_ctest build totals-run.xml "${selection[@]}" || status=1
fi
if [ $with_fuzz = yes ]; then
    say "building the fuzz targets into build-fuzz/"
    configure_and_build build-fuzz fuzz_targets -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_COMPILER=clang++ \
        -DTOUCHSTONE_FUZZ=ON -DTOUCHSTONE_CUDA=OFF
    run_ctest build-fuzz totals-run.xml -L '^fuzz$' || status=1
fi
print_totals build*/totals-run.xml
exit $status
