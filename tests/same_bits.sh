#!/usr/bin/env bash
# tests/same_bits.sh native|aarch64 SCRATCH_FOLDER [PROGRAM]: the arithmetic gives the same bits whatever built and runs
# it. Compiles tests/numerics_digest.cpp with the numerics and the text model, and compares what it prints with
# golden/numerics/digest.txt:
#   native   g++ and clang++, each without optimisation and with -O3, on every instruction set of this CPU and with 1, 2
#            and 7 threads; PROGRAM is a numerics_digest that is built already, compared too
#   aarch64  a cross compiler, run by qemu: another architecture's fused multiply-add, NaN bits and libm
# One line per run. Exit: 0 all equal, 1 a difference or a build that failed, 2 bad use, 77 what it takes is missing.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
mode=${1:?usage: same_bits.sh native|aarch64 SCRATCH_FOLDER [PROGRAM]}
scratch=$(realpath -m "${2:?usage: same_bits.sh native|aarch64 SCRATCH_FOLDER [PROGRAM]}")
program=${3:+$(realpath "$3")}
cd "$root" || exit 2
stored=golden/numerics/digest.txt
export LC_ALL=C CCACHE_BASEDIR=$root
launcher=$(command -v ccache || true)
jobs=$(nproc)

# The flags are those of the build: there is one place to change them.
flags_of() { sed -n "s/^set(isa_flags_$1 \(.*\))\$/\1/p" reference/CMakeLists.txt | tr -d '"'; }
arithmetic=$(sed -n 's/.*COMPILE_LANGUAGE:CXX>:\(-ffp-contract[^>]*\)>.*/\1/p' CMakeLists.txt)
if [ -z "$arithmetic" ] || [ -z "$(flags_of avx512)" ]; then
    printf 'same_bits: the flags of arithmetic or of AVX-512 are not found in the CMakeLists\n' >&2
    exit 2
fi

# No floats are summed in the first: one optimisation level of them does for all.
plain_sources=(reference/io/user_error.cpp reference/layout/cache_layout.cpp reference/layout/kv_record.cpp
    reference/layout/kv_page.cpp reference/model/checkpoint_weights.cpp reference/model/layer_roles.cpp
    reference/model/synthetic_checkpoint.cpp reference/model/synthetic_tensors.cpp reference/model/tensor_source.cpp
    reference/model/weights.cpp reference/numerics/isa.cpp reference/numerics/sum_order.cpp)
sources=(tests/numerics_digest.cpp)
vector_sources=()
for source in reference/*.cpp reference/numerics/*.cpp; do
    case $source in
        *_vector.cpp) vector_sources+=("$source") ;;
        */replay.cpp | */sampling.cpp | */sequence_state_file.cpp) ;; # not in the digest
        *) [[ " ${plain_sources[*]} " == *" $source "* ]] || sources+=("$source") ;;
    esac
done

# Sections that nothing calls are left out when linking, and so what only they call: files, JSON.
compile_command() {
    printf '%s %s -std=c++20 -w -I. -fopenmp -ffunction-sections %s %s' "$launcher" "$1" "$arithmetic" "$2"
}

# plan_sources FOLDER COMPILE_COMMAND SOURCE...: adds what compiles them into FOLDER to the list.
plan_sources() {
    local folder=$1 compile=$2 source
    shift 2
    for source in "$@"; do
        printf '%s -c %s -o %s/%s.o\n' "$compile" "$source" "$folder" "$(basename "$source" .cpp)"
    done >>"$scratch/commands"
}

# plan NAME COMPILER FLAGS SET...: the same for everything but the plain sources of a program made in $scratch/NAME.
plan() {
    local folder=$scratch/$1 compile set source
    compile=$(compile_command "$2" "$3")
    shift 3
    rm -rf "$folder" && mkdir -p "$folder" || exit 2
    plan_sources "$folder" "$compile" "${sources[@]}"
    for set in "$@"; do
        for source in "${vector_sources[@]}"; do
            printf '%s %s -fno-math-errno -fno-trapping-math -DTOUCHSTONE_ISA_NAMESPACE=isa_%s -c %s -o %s/%s_%s.o\n' \
                "$compile" "$(flags_of "$set")" "$set" "$source" "$folder" "$(basename "$source" .cpp)" "$set"
        done
    done >>"$scratch/commands"
}

# plan_plain COMPILER FLAGS: the plain sources, into $scratch/plain-COMPILER.
plan_plain() {
    rm -rf "$scratch/plain-$1" && mkdir -p "$scratch/plain-$1" || exit 2
    plan_sources "$scratch/plain-$1" "$(compile_command "$1" "$2")" "${plain_sources[@]}"
}

# compile: everything planned, on all cores.
compile() {
    xargs -P "$jobs" -d '\n' -n 1 sh -c <"$scratch/commands" 2>"$scratch/errors.txt" && return
    head -n 20 "$scratch/errors.txt"
}

# link NAME COMPILER FLAGS: 1 when an object is missing or the linker fails.
link() {
    $2 -fopenmp -Wl,--gc-sections "$scratch/$1"/*.o "$scratch/plain-$2"/*.o -o "$scratch/$1/numerics_digest" $3 \
        2>"$scratch/errors.txt" && return
    head -n 5 "$scratch/errors.txt"
    printf 'FAILED    %s does not build\n' "$1"
    different=$((different + 1))
    return 1
}

equal=0 different=0
# compare NAME COMMAND...: runs it and compares its lines.
compare() {
    local name=$1
    shift
    if "$@" >"$scratch/lines.txt" 2>"$scratch/errors.txt" && cmp -s "$scratch/lines.txt" "$stored"; then
        printf 'equal     %s\n' "$name"
        equal=$((equal + 1))
        return
    fi
    printf 'DIFFERENT %s\n' "$name"
    head -n 5 "$scratch/errors.txt"
    diff -u --label "$stored" --label "$name" "$stored" "$scratch/lines.txt" | grep '^[-+]' | head -n 12
    different=$((different + 1))
}

# every_set NAME PROGRAM: on every instruction set of this CPU.
every_set() {
    local set
    for set in $("$2" sets); do
        compare "$1, $set" env TOUCHSTONE_ISA="$set" OMP_NUM_THREADS=2 "$2"
    done
}

# usable COMPILER [FLAG...]: it is there, with its OpenMP and fmt.
usable() {
    command -v "$1" >/dev/null && mkdir -p "$scratch" &&
        printf '#include <fmt/format.h>\nint main() { fmt::print("{}", 1); }\n' |
        "$@" -std=c++20 -fopenmp -x c++ - -x none -o "$scratch/usable" -lfmt 2>/dev/null
}

# Tables that could be computed while compiling are not: it would take most of the time.
limits_of() {
    case $1 in
        g++) printf -- '-fconstexpr-loop-limit=5000' ;;
        clang++) printf -- '-fconstexpr-steps=100000' ;;
    esac
}

native() {
    local compiler level compilers=() sets=(scalar) threads
    if [ "$(uname -m)" = x86_64 ]; then sets+=(avx2 avx512); fi
    for compiler in g++ clang++; do
        if usable "$compiler"; then
            compilers+=("$compiler")
            plan_plain "$compiler" -O0
            for level in -O3 -O0; do
                plan "$compiler$level" "$compiler" "$level $(limits_of "$compiler")" "${sets[@]}"
            done
        else
            printf 'skipped   %s: not here, or without OpenMP or fmt\n' "$compiler"
        fi
    done
    compile
    if [ -n "$program" ]; then every_set "this build" "$program"; fi
    for compiler in "${compilers[@]}"; do
        for level in -O0 -O3; do
            link "$compiler$level" "$compiler" -lfmt || continue
            every_set "$compiler $level" "$scratch/$compiler$level/numerics_digest"
        done
        for threads in 1 7; do
            compare "$compiler -O3, $threads threads" env OMP_NUM_THREADS=$threads \
                "$scratch/$compiler-O3/numerics_digest"
        done
    done
}

aarch64() {
    local compiler=aarch64-linux-gnu-g++ emulator flags threads
    emulator=$(command -v qemu-aarch64-static || command -v qemu-aarch64)
    if ! command -v $compiler >/dev/null || [ -z "$emulator" ]; then
        printf 'skipped: aarch64-linux-gnu-g++ or qemu-aarch64 is missing; apt-get install %s\n' \
            'g++-aarch64-linux-gnu qemu-user-static'
        exit 77
    fi
    # Headers alone: the libraries of this machine are of another architecture.
    mkdir -p "$scratch/include" && ln -sfn "$(headers_of fmt/format.h)" "$scratch/include/fmt" &&
        ln -sfn "$(headers_of nlohmann/json.hpp)" "$scratch/include/nlohmann"
    flags="-O2 -DFMT_HEADER_ONLY -isystem $scratch/include $(limits_of g++)"
    plan aarch64 $compiler "$flags" scalar
    plan_plain $compiler "$flags"
    compile
    link aarch64 $compiler -static || return
    for threads in 1 7; do
        compare "aarch64 -O2, $threads threads" env OMP_NUM_THREADS=$threads "$emulator" \
            "$scratch/aarch64/numerics_digest"
    done
}

# The folder of a header on this machine.
headers_of() {
    dirname "$(printf '#include <%s>\n' "$1" | g++ -std=c++20 -M -x c++ - | tr ' ' '\n' | grep "/$1\$" | head -n 1)"
}

mkdir -p "$scratch" && rm -f "$scratch/commands" || exit 2
case $mode in
    native) native ;;
    aarch64) aarch64 ;;
    *) printf 'same_bits: %s: expected native or aarch64\n' "$mode" >&2; exit 2 ;;
esac
printf 'same bits: %d runs equal, %d not\n' "$equal" "$different"
[ "$different" -eq 0 ] && [ "$equal" -gt 0 ]
