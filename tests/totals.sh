# Sourced by tests/run.sh and .ci/run: runs ctest and adds up what really ran, from its JUnit files.
# shellcheck shell=bash

# run_ctest FOLDER TOTALS_FILE CTEST_OPTION...: TOTALS_FILE is written inside FOLDER. No test at all is a failure.
run_ctest() {
    local folder=$1 totals=$2
    shift 2
    # Tests run beside each other; threads that spin while they wait would take the cores from them.
    OMP_WAIT_POLICY=passive ctest --test-dir "$folder" --output-on-failure --no-tests=error --parallel "$(nproc)" \
        --output-junit "$totals" "$@" </dev/null
}

# print_totals TOTALS_FILE...: "N passed, M failed", and ", K skipped" where tests said that they cannot run here.
print_totals() {
    awk '
        function attribute(name,    text) {
            if (!match($0, name "=\"[0-9]+\"")) return 0
            text = substr($0, RSTART, RLENGTH)
            gsub(/[^0-9]/, "", text)
            return text + 0
        }
        /<testsuite / { in_suite = 1 }
        in_suite {
            tests += attribute("[ \t]tests"); failed += attribute("[ \t]failures")
            skipped += attribute("[ \t]skipped") + attribute("[ \t]disabled")
            if (/>/) in_suite = 0
        }
        END {
            printf "%d passed, %d failed%s\n", tests - failed - skipped, failed, skipped ? ", " skipped " skipped" : ""
        }' "$@"
}
