#!/usr/bin/env bash
# Calibrates the ten configurations of the README and confirms each on held-out clips. Needs ./build.sh first; an
# interrupted run goes on where it was. What it writes is committed: calibration/NAME.json, calibration/evidence/NAME.
#
# usage: calibration/configurations.sh [NAME...]      (default: all; about two hours on 2 busy cores)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
pyharness=.venv/bin/pyharness
runs=${PADSINK_RUNS:-runs}

calibrate() {
    local name=$1 model=$2 speech=$3 clips=$4 profile=calibration/$1.json evidence=calibration/evidence/$1
    "$pyharness" calibrate --model "$model" --speech "$speech" --clips "$clips" --run "$runs/$name" --out "$profile"
    "$pyharness" evaluate --profile "$profile" --speech "$speech" --clips "$clips" --run "$runs/$name-held-out"
    rm -rf "$evidence"
    if [[ -f $runs/$name-held-out/summary.json ]]; then # a profile of the full cache has nothing to confirm
        mkdir -p "$evidence"
        cp "$runs/$name-held-out"/{run,summary}.json "$evidence"
    fi
}

names=("$@")
if [[ ${#names[@]} == 0 ]]; then
    names=(base-en base-ru tiny.en-en base-es base-fr base-it base-tr base-uz base-q5_0-en base-q5_0-ru)
fi

for name in "${names[@]}"; do
    model=${name%-*}
    language=${name##*-}
    case $language in
        tr | uz) speech=espeak-$language ;; # synthetic
        *)       speech=asterisk-$language ;;
    esac
    case $name in
        base-en | base-ru | tiny.en-en) clips=150 ;;
        *)                              clips=50 ;;
    esac
    calibrate "$name" "$model" "$speech" "$clips"
done
