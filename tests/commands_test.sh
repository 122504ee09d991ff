#!/usr/bin/env bash
# tests/commands_test.sh BUILD_FOLDER: everything that we tell people to type works. Runs, and expects exit 0 from,
#   - each line of README.md inside a ```sh block that starts with `build/touchstone` or `bash`; the two scripts that
#     build and test (cli/quickstart.sh, tests/run.sh) are left out, since they would run this test again;
#   - each line under "Examples:" in `touchstone COMMAND --help`, of which every command must show two.
# A gpu command may answer with exit 3 that there is no device to compare with.
# They run in a scratch folder that has the checkout's entries as links and `build` for the build folder, so that what
# they write stays there. Exit: 0 all ran, 1 one failed or there was nothing to run.
set -uo pipefail
source_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$(cd "${1:?usage: commands_test.sh BUILD_FOLDER}" && pwd) || exit 1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
for entry in "$source_root"/*; do
    case $(basename "$entry") in build*) ;; *) ln -s "$entry" "$scratch/" ;; esac
done
ln -s "$build" "$scratch/build"
cd "$scratch" || exit 1
PATH=$scratch/build:$PATH

ran=0 failed=0
# try ORIGIN LINE: runs LINE; ORIGIN says where it is shown.
try() {
    local status=0
    bash -o pipefail -c "$2" >output.txt 2>&1 </dev/null || status=$?
    ran=$((ran + 1))
    if [ "$status" -eq 0 ]; then
        printf 'ran    %s: %s\n' "$1" "$2"
    elif [ "$status" -eq 3 ] && [[ "$2" == *'touchstone gpu '* ]] && grep -q '^touchstone: nothing compared: ' output.txt; then
        printf 'no GPU %s: %s (%s)\n' "$1" "$2" "$(head -n 1 output.txt)"
    else
        printf 'FAILED %s: %s (exit %d)\n' "$1" "$2" "$status"
        head -n 20 output.txt
        failed=$((failed + 1))
    fi
}
complain() {
    printf 'FAILED %s\n' "$1"
    failed=$((failed + 1))
}

# Lines of the ```sh blocks of a Markdown file.
shell_lines() { awk '/^```/ { inside = !inside && /^```sh$/; next } inside' "$1"; }
if [ ! -f README.md ]; then
    complain "README.md is missing"
else
    while IFS= read -r line; do
        case $line in
            'bash cli/quickstart.sh'* | 'bash tests/run.sh'*) ;;
            'build/touchstone '* | 'bash '*) try README.md "$line" ;;
        esac
    done < <(shell_lines README.md)
    if [ "$ran" -eq 0 ]; then complain 'README.md shows no command to run (build/touchstone or bash in a ```sh block)'; fi
fi

# Names under "Subcommands:", and the indented lines under "Examples:".
subcommands() { touchstone --help | awk '/^Subcommands:/ { inside = 1; next } /^[^ ]/ { inside = 0 } inside && /^  [^ ]/ { print $1 }'; }
examples() { touchstone "$1" --help | awk '/^ *Examples:/ { inside = 1; next } inside && /^[^ ]/ { inside = 0 } inside && NF { sub(/^ +/, ""); print }'; }
commands=$(subcommands)
if [ -z "$commands" ]; then complain "touchstone --help lists no subcommands"; fi
for command in $commands; do
    shown=0
    while IFS= read -r line; do
        shown=$((shown + 1))
        case $line in
            'touchstone '*) try "$command --help" "$line" ;;
            *) complain "$command --help: an example must be one line that starts with touchstone: $line" ;;
        esac
    done < <(examples "$command")
    if [ "$shown" -lt 2 ]; then complain "$command --help shows $shown examples; every command shows two"; fi
done

printf 'commands: %d ran, %d failed\n' "$ran" "$failed"
[ "$failed" -eq 0 ]
