#!/usr/bin/env bash
# Installs what is missing, builds into build/, prints the memory table of DeepSeek-V4.1-Flash and verifies that commands
# and operators still give what golden/ holds. Takes no arguments. Exit: 0 all is well, 1 a step failed, 2 packages are
# missing and cannot be installed from here.
set -euo pipefail
touchstone_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$touchstone_root"
. cli/build.sh

if [ $# -gt 0 ]; then
    printf 'cli/quickstart.sh takes no arguments, but was given: %s\n' "$*" >&2
    exit 2
fi
install_packages
build_touchstone touchstone
say "the memory of DeepSeek-V4.1-Flash: build/touchstone kv --context 1048576"
build/touchstone kv --context 1048576
say "golden outputs"
bash golden/verify.sh build/touchstone
say "the bits of every operator: build/touchstone golden verify"
build/touchstone golden verify | tail -n 1
say "next: build/touchstone --help"
