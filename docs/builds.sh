#!/usr/bin/env bash
# Measures what docs/builds.md decides: makes the builds, times whole clips under each in turns, and prints the tables.
# What was measured is committed: docs/builds/MODEL.json (`pyharness bench report` makes a page of it). A portable build is in it if there is one (./build.sh --portable).
#
# usage: docs/builds.sh [MODEL...]      (default: four types of base; about 20 minutes on 2 idle cores)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

models=("$@")
if [[ ${#models[@]} == 0 ]]; then models=(base base-q8_0 base-q5_0 base-q4_0); fi

no_amx="-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"

# variant NAME OPTION
variant() { PADSINK_CMAKE=$2 ./build.sh --variant "$1"; }

./build.sh stock
./build.sh --openblas
variant no-openmp    -DGGML_OPENMP=OFF
variant no-repack    -DGGML_CPU_REPACK=OFF
variant no-llamafile -DGGML_LLAMAFILE=OFF
variant no-amx       "-DCMAKE_C_FLAGS='-mno-avx512fp16 $no_amx' -DCMAKE_CXX_FLAGS='-mno-avx512fp16 $no_amx'"
variant upstream     "-DGGML_LLAMAFILE=OFF -DCMAKE_C_FLAGS='$no_amx' -DCMAKE_CXX_FLAGS='$no_amx'" # its AMX would crash

builds=()
for name in openblas no-openmp no-repack no-llamafile no-amx upstream portable; do
    if [[ -f build-$name/lib/libwhisper.so ]]; then builds+=(--build "$name=build-$name"); fi
done

mkdir -p docs/builds
for model in "${models[@]}"; do
    .venv/bin/pyharness bench builds --model "$model" "${builds[@]}" --lengths 4 --clips 3 --repeats 1 --json >"docs/builds/$model.json"
done

.venv/bin/pyharness bench builds --flash-attention-off --lengths 4 --clips 2 --repeats 1 --json >docs/builds/base-flash.json

.venv/bin/pyharness bench report docs/builds/*.json --markdown
