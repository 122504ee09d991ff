#!/usr/bin/env bash
# tests/parity/parity.sh TOUCHSTONE [--venv DIR] [--explain] [--record DIR]: transformers' deepseek_v41 and ours on one
# tiny checkpoint (README.md). Python is TOUCHSTONE_PYTHON, or python3.
#   --venv DIR    makes a virtual environment with requirements.txt there, if there is none, and uses it
#   --explain     also how far apart the quantised runs are with each difference in arithmetic left in
#   --record DIR  writes what golden/parity/transformers_tiny holds; TOUCHSTONE_TRANSFORMERS_SOURCE says where
#                 deepseek_v41 is from, where pip does not know
# Exit: 0 all agree, 1 something does not, 2 bad use, 77 skipped: Python or a package is missing.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
usage() { sed -n '2,3s/^# //p' "${BASH_SOURCE[0]}" >&2; exit 2; }
[ $# -ge 1 ] || usage
# Without following links: a virtual environment's python is one.
absolute() { printf '%s/%s' "$(cd "$(dirname "$1")" && pwd)" "$(basename "$1")"; }
touchstone=$(absolute "$1") python=${TOUCHSTONE_PYTHON:-python3} explain=no record=
shift
while [ $# -gt 0 ]; do
    case $1 in
        --venv) [ $# -ge 2 ] || usage
                [ -x "$2/bin/python" ] || { python3 -m venv "$2" && "$2/bin/pip" install -r "$here/requirements.txt"; }
                python=$2/bin/python; shift ;;
        --explain) explain=yes ;;
        --record) [ $# -ge 2 ] || usage
                  record=$(realpath -m "$2"); shift ;;
        *) usage ;;
    esac
    shift
done
found=$(command -v "$python") || { printf 'skipped, no %s\n' "$python"; exit 77; }
python=$(absolute "$found")
needed='import numpy, safetensors, sympy, torch; from transformers.models.deepseek_v41 import modeling_deepseek_v41'
if ! reason=$("$python" -c "$needed" 2>&1); then
    printf 'skipped, no transformers with deepseek_v41 (%s): %s\n' "$python" "$(tail -n 1 <<<"$reason")"
    exit 77
fi
export OMP_NUM_THREADS=1 TRANSFORMERS_VERBOSITY=error PYTHONDONTWRITEBYTECODE=1

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
"$touchstone" checkpoint make --config tiny --seed 1 --out tiny >/dev/null
prompt=$(cat "$here/tokens.txt")
first() { cut -d, -f "1-$1" <<<"$prompt"; }
failed=0
# ours NAME CHECKPOINT ARGUMENT...: NAME.ours, and NAME.tokens, the prompt and what was generated.
ours() {
    local name=$1 checkpoint=$2 tokens=$3
    shift 3
    "$touchstone" run --config "$checkpoint/" --tokens "$tokens" --trace "$name.ours" --json "$@" >"$name.json"
    "$python" -c 'import json, sys; print(*sys.argv[2:], *json.load(open(sys.argv[1]))["generated"], sep=",")' \
        "$name.json" "$tokens" >"$name.tokens"
}
theirs() {
    local name=$1 checkpoint=$2
    shift 2
    "$python" "$here/run_transformers.py" "$checkpoint" "$name.ours" --tokens "$(cat "$name.tokens")" \
        --out "$name.theirs" "$@" 2>"$name.log" || { cat "$name.log"; exit 1; }
}
compare() {
    local name=$1 checkpoint=$2
    shift 2
    printf '\n%s: %s\n' "$name" "$*"
    "$python" "$here/compare_traces.py" "$checkpoint" "$name.ours" "$name.theirs" "$@" || failed=1
}
# tool NAME ARGUMENT...: the same by touchstone compare, transformers being what is expected.
tool() {
    local name=$1
    shift
    if "$touchstone" compare "$name.theirs" "$name.ours" "$@" >tool.txt 2>tool.log; then
        printf 'touchstone compare %s: %s\n' "$*" "$(grep -E '^[A-Z]+: [0-9]+ tensors' tool.txt)"
    else
        printf 'touchstone compare %s: FAILED\n' "$*"
        tail -n 5 tool.log
        grep -E '^FAILED' tool.txt
        failed=1
    fi
}
# float32 NAME CHECKPOINT TOKENS [ARGUMENT of ours...] [-- ARGUMENT of theirs...]: quantisation off, ideal; ours takes
# the choices of theirs, and the comparison judges whether it may.
float32() {
    local name=$1 checkpoint=$2 tokens=$3 generated
    shift 3
    local mine=()
    while [ $# -gt 0 ] && [ "$1" != -- ]; do mine+=("$1"); shift; done
    [ $# -eq 0 ] || shift
    ours "$name" "$checkpoint" "$tokens" --arithmetic ideal "${mine[@]}"
    theirs "$name" "$checkpoint" --quantization off "$@"
    generated=$(cat "$name.tokens")
    ours "$name" "$checkpoint" "$tokens" --arithmetic ideal "${mine[@]}" --force-choices "$name.theirs"
    [ "$generated" = "$(cat "$name.tokens")" ] || { printf '%s: other tokens generated\n' "$name"; failed=1; }
    compare "$name" "$checkpoint" --limit 1e-4 --tie 1e-6
    tool "$name" --tolerance rms=1e-4 --tensor '^(?!.*pool.blocks$)'  # whose ties take scores to judge
}

for length in 1 2 47 48 49; do float32 "prefill$length" tiny "$(first $length)"; done
float32 prefill100 tiny "$prompt" --decode 8
float32 chunks37 tiny "$prompt" -- --chunk 37  # ours in one call
# transformers reads Engram's rows without their scales (spec, text model 12.1, 13): right where the scales are 1.
"$python" "$here/unit_engram_scales.py" tiny unit
float32 unit_scales unit "$prompt" -- --raw-engram-table

# Quantisation on: every layer from our stream, so one flipped code stays where it is.
as_released=q8,rope,norm,attention,head
ours quantised tiny "$prompt" --arithmetic exact --decode 4
theirs quantised tiny --dtype bfloat16 --streams --as-released $as_released
compare quantised tiny --same-lists --limit 1e-2 --share 0.03 --tie 1e-2
# Bit for bit, but for fp4 zeros: transformers has no negative ones.
tool quantised --tensor '(compressed_kv|indexer.key|attn.collapsed|engram.kv|x_in|pre_in|final.normed)$' \
    --tolerance '(compressed_kv|indexer.key)$:abs=0'
tool quantised --tensor 'logits$' --tolerance fp32_row

if [ $explain = yes ]; then
    printf '\nWith these followed, of: %s\n' $as_released
    for followed in "" rope,norm,attention,head q8,norm,attention,head q8,rope,attention,head q8,rope,norm,head \
                    q8,rope,norm,attention $as_released; do
        cp quantised.ours explained.ours; cp quantised.tokens explained.tokens
        theirs explained tiny --dtype bfloat16 --streams --as-released "$followed"
        printf '\n[%s]\n' "$followed"
        "$python" "$here/compare_traces.py" tiny explained.ours explained.theirs --same-lists --limit 1e-2 \
            --share 1 --tie inf | grep -v ' became ' || true
    done
fi
if [ -n "$record" ]; then
    "$python" "$here/record.py" "$scratch" "$record"
fi
exit $failed
