#!/usr/bin/env bash
# All tests under the sanitizers; every command with every option under valgrind; searches and the live suites at length, those of
# TensorFlow, MXNet and Horovod in environments of their own; the Python suites with another build of Python; `make demo` and
# `make test` in a clean Debian 12; then each fuzz target for a minute (FUZZ_SECONDS). The last line counts cases; a fuzz
# target is one case.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
passed=0 failed=0 skipped=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

add_counts() # adds the count that $log ends with; a run that ended without one failed
{
    if [[ $(tail -n 1 "$log") =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed(,\ ([0-9]+)\ skipped)?$ ]]; then
        passed=$((passed + BASH_REMATCH[1]))
        failed=$((failed + BASH_REMATCH[2]))
        skipped=$((skipped + ${BASH_REMATCH[4]:-0}))
    else
        failed=$((failed + 1))
    fi
}

sanitize() # sanitize FOLDER SANITIZERS
{
    echo "== tests under $2"
    if tools/build.sh "$1" -Dbuildtype=debugoptimized "-Db_sanitize=$2" -Db_lundef=false; then
        tools/run_tests.py --build "$1" --slow 10 | tee "$log"
    else
        echo "could not be built" | tee "$log"
    fi
    add_counts
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

export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1
sanitize build-asan address,undefined
sanitize build-tsan thread

echo "== every command with every option on every bundled trace under valgrind"
if tools/build.sh build; then
    DPRO_LONG=1 tools/run_tests.py --build build --slow 20 cli/valgrind | tee "$log"
else
    echo "could not be built" | tee "$log"
fi
add_counts

echo "== searches and jobs of PyTorch, TensorFlow, MXNet and Horovod at length"
for framework in torch tensorflow mxnet horovod horovod-pytorch; do
    tools/venv.sh "$framework"
done
if tools/build.sh build; then
    DPRO_LONG=1 tools/run_tests.py --build build search search_servers live | tee "$log"
else
    echo "could not be built" | tee "$log"
fi
add_counts

echo "== the Python suites with another build of Python"
DPRO_OTHER_PYTHON=${DPRO_OTHER_PYTHON:-$(tools/other_python.sh)}
export DPRO_OTHER_PYTHON
if [[ -z $DPRO_OTHER_PYTHON ]]; then
    echo "skipped: no other Python with a version that .venv has (DPRO_OTHER_PYTHON names one)"
    skipped=$((skipped + 1))
else
    "$DPRO_OTHER_PYTHON" -VV
    tools/venv.sh other
    if [[ -e .venv-other.missing ]]; then
        echo "skipped: $(<.venv-other.missing)"
        skipped=$((skipped + 1))
    else
        DPRO_PYTHON=$PWD/.venv-other/bin/python .venv-other/bin/python tools/run_tests.py --build build cli live | tee "$log"
        add_counts
    fi
fi

echo "== the README's two commands in a clean Debian 12"
tools/test_clean.sh | tee "$log"
add_counts

seconds=${FUZZ_SECONDS:-60}
if ! command -v clang >/dev/null; then
    echo "== fuzz targets: skipped, no clang here"
    skipped=$((skipped + 1))
elif ! CC=clang tools/build.sh build-fuzz -Dfuzz=true; then
    echo "== fuzz targets: could not be built"
    failed=$((failed + 1))
else
    found=0
    for target in build-fuzz/tests/fuzz/libfuzzer_*; do
        [[ -f $target && -x $target ]] || continue
        found=1
        name=$(basename "$target")
        corpus=build-fuzz/corpus/$name
        seeds=build-fuzz/tests/fuzz/seeds/${name#libfuzzer_}
        mkdir -p "$corpus"
        folders=("$corpus")
        [[ -d $seeds ]] && folders+=("$seeds")
        dictionary=build-fuzz/$name.dict
        write_dictionary "${name#libfuzzer_}" >"$dictionary"
        echo "== $name for $seconds s"
        if "$target" "-max_total_time=$seconds" "-dict=$dictionary" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
            "-artifact_prefix=build-fuzz/$name-" "${folders[@]}" >"$log" 2>&1; then
            grep -E '^stat::(number_of_executed_units|peak_rss_mb)' "$log"
            passed=$((passed + 1))
        else
            tail -n 60 "$log"
            failed=$((failed + 1))
        fi
    done
    [[ $found -eq 1 ]] || echo "== fuzz targets: none built"
fi

if [[ $skipped -gt 0 ]]; then
    echo "$passed passed, $failed failed, $skipped skipped"
else
    echo "$passed passed, $failed failed"
fi
[[ $failed -eq 0 && $passed -gt 0 ]]
