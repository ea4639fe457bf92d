#!/usr/bin/env bash
# test_long.sh [PART...]: what takes too long for `make test`; each of these parts, or those named:
#   address     all tests under the address and undefined behaviour sanitizers
#   thread      all tests under the thread sanitizer
#   valgrind    every command with every option on every bundled trace
#   frameworks  searches and live suites at length, those of TensorFlow, MXNet and Horovod in environments of their own
#   python      what runs Python, with another build of it (DPRO_OTHER_PYTHON)
#   debian      `make demo` and `make test` in a clean Debian 12
#   fuzz        each fuzz target for a minute (FUZZ_SECONDS)
# The last line counts cases; a fuzz target is one case.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
passed=0 failed=0 skipped=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1

count() # count TITLE COMMAND...: runs it and adds the count that it ends with; a run that ended without one failed
{
    echo "== $1"
    "${@:2}" 2>&1 | tee "$log"
    if [[ $(tail -n 1 "$log") =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed(,\ ([0-9]+)\ skipped)?$ ]]; then
        passed=$((passed + BASH_REMATCH[1]))
        failed=$((failed + BASH_REMATCH[2]))
        skipped=$((skipped + ${BASH_REMATCH[4]:-0}))
    else
        failed=$((failed + 1))
    fi
}

skip() # skip WHY
{
    echo "skipped: $1"
    skipped=$((skipped + 1))
}

run() # run FOLDER RUN_TESTS_ARGUMENT...: builds, tests
{
    tools/build.sh "$1" && "${python:-python3}" tools/run_tests.py --build "$@"
}

sanitize() # sanitize FOLDER SANITIZERS
{
    tools/build.sh "$1" -Dbuildtype=debugoptimized "-Db_sanitize=$2" -Db_lundef=false && run "$1" --slow 10
}

part_address()
{
    count "tests under the address and undefined behaviour sanitizers" sanitize build-asan address,undefined
}

part_thread()
{
    count "tests under the thread sanitizer" sanitize build-tsan thread
}

part_valgrind()
{
    DPRO_LONG=1 count "every command with every option on every bundled trace under valgrind" run build --slow 20 cli/valgrind
}

part_frameworks()
{
    local framework
    for framework in torch tensorflow mxnet horovod horovod-pytorch launchers; do
        tools/venv.sh "$framework"
    done
    DPRO_LONG=1 count "searches and jobs of PyTorch, TensorFlow, MXNet and Horovod at length" \
        run build search search_servers cli/race cli/pages live
}

part_python()
{
    local suites python=.venv-other/bin/python
    export DPRO_OTHER_PYTHON=${DPRO_OTHER_PYTHON:-$(tools/other_python.sh)}
    [[ -n $DPRO_OTHER_PYTHON ]] || { skip "no other Python with a version that .venv has (DPRO_OTHER_PYTHON names one)" && return; }
    tools/venv.sh other
    [[ ! -e .venv-other.missing ]] || { skip "$(<.venv-other.missing)" && return; }
    mapfile -t suites < <(grep -l sys.executable tests/cli/test_*.py | sed 's,tests/cli/test_\(.*\)\.py,cli/\1,')
    DPRO_PYTHON=$PWD/$python count "with $($python -VV)" run build "${suites[@]}" live
}

part_debian()
{
    count "the README's two commands in a clean Debian 12" tools/test_clean.sh
}

write_dictionary() # write_dictionary TARGET: the names that the readers, the graph and what the target includes compare with
{
    local folders=(src/ingest src/graph) source=tests/fuzz/fuzz_$1.c name file
    [[ -e $source ]] || source=tests/fuzz/fuzz_reader.c
    for name in $(sed -n 's/^#include ["<]\(dpro\/\)\?\([a-z]*\)[/.].*/\2/p' "$source"); do
        for file in "src/$name/" src/*/"$name.c"; do # "attach/fabric.h", <dpro/verify.h>
            [[ -e $file && ! " ${folders[*]} " == *" ${file%/*} "* ]] && folders+=("${file%/*}")
        done
    done
    tools/fuzz_dict.py "${folders[@]}"
}

fuzz() # fuzz TARGET
{
    local name=${1##*/libfuzzer_} corpus="build-fuzz/corpus/${1##*/}"
    mkdir -p "$corpus"
    write_dictionary "$name" >"build-fuzz/$name.dict"
    if "$1" "-max_total_time=${FUZZ_SECONDS:-60}" "-dict=build-fuzz/$name.dict" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
        "-artifact_prefix=build-fuzz/$name-" "$corpus" build-fuzz/tests/fuzz/seeds/* tests/fuzz/found >"build-fuzz/$name.log" 2>&1; then
        grep -E '^stat::(number_of_executed_units|peak_rss_mb)' "build-fuzz/$name.log"
        echo "1 passed, 0 failed"
    else
        tail -n 60 "build-fuzz/$name.log"
        echo "0 passed, 1 failed"
    fi
}

part_fuzz()
{
    local target clang
    clang=$(compgen -c clang | grep -E '^clang(-[0-9]+)?$' | sort -V | head -n 1)
    [[ -n $clang ]] || { skip "no clang here for the fuzz targets (apt install clang)" && return; }
    if ! CC=$clang tools/build.sh build-fuzz -Dfuzz=true; then
        failed=$((failed + 1))
        return
    fi
    for target in build-fuzz/tests/fuzz/libfuzzer_*; do
        [[ ! -f $target || ! -x $target ]] || count "${target##*/}" fuzz "$target"
    done
}

[[ $# -gt 0 ]] || set -- address thread valgrind frameworks python debian fuzz
for part; do
    declare -F "part_$part" >/dev/null || { echo "test_long.sh: no part is called $part" >&2 && exit 2; }
done
for part; do
    "part_$part"
done
echo "$passed passed, $failed failed$([[ $skipped -eq 0 ]] || echo ", $skipped skipped")"
[[ $failed -eq 0 && $passed -gt 0 ]]
