#!/usr/bin/env bash
# Measures what README says about speed, and keeps it in docs/speed/*.json: stock and ours in turns, errors beside times.
# `pyharness bench report docs/speed/*.json` shows it. Keep the machine idle; about 35 minutes on 2 cores, and 4 more for
# `dram`, which counts bytes in a simulation and does not mind company.
#
# usage: docs/speed.sh [step] [real] [decoders] [utterance] [peers] [dram]      (default: all but dram)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

what=("$@")
if [[ ${#what[@]} == 0 ]]; then what=(step decoders real peers utterance); fi

# bench NAME COMMAND...: the result is kept when it is complete
bench() {
    local name=$1; shift
    .venv/bin/pyharness bench "$@" --json >"docs/speed/$name.part"
    mv "docs/speed/$name.part" "docs/speed/$name.json"
}

mkdir -p docs/speed
for one in "${what[@]}"; do
    case $one in
        step)
            for model in base-q5_0 base-q8_0 base; do bench "step-$model" step --model "$model"; done
            for model in small medium; do
                bench "step-synth-$model-q5_0" step --model "synth-$model-q5_0" --budgets 192 --rounds 12
            done
            ;;
        real)
            bench real-base-q5_0-ru step --mode real --profile calibration/base-q5_0-ru.json --speech asterisk-ru --clips 50 --threads 1
            ;;
        decoders)
            bench decoders-base-q5_0-ru decoders --profile calibration/base-q5_0-ru.json --speech asterisk-ru --n 8 --rounds 10
            bench decoders-n            decoders --model base-q5_0 --budget 192 --n 1,2,4,16 --rounds 3
            ;;
        utterance) bench utterance-base-en utterance --profile calibration/base-en.json --lengths 1,2,4,8,15,30 --clips 2 --repeats 1 --threads 1 ;;
        peers)     bench peers-base-en peers --profile calibration/base-en.json --clips 24 --threads 1 ;;
        dram) # valgrind knows no AVX-512
            PADSINK_CMAKE="-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON" ./build.sh --variant avx2 stock
            bench dram-base-q5_0 dram --model base-q5_0 --build build-avx2 --budgets 192 --steps 8
            ;;
        *)         echo "docs/speed.sh: unknown '$one'" >&2; exit 2 ;;
    esac
done
