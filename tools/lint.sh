#!/usr/bin/env bash
# lint.sh [BUILD]: what a reader would have to check by eye: formatting, headers that compile alone, who includes and
# calls what, names, widths and words (lint_tree.py), man pages, Python files. A tool that is not there is a finding:
# 'make deps' installs them all. BUILD is a build of this tree, whose objects tell who calls whom.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
build=${1:-build}
bad=0

sources() # sources PATTERN...: the project's own files
{
    git ls-files "$@" 2>/dev/null && return
    local pattern
    for pattern; do
        find . -path './build*' -prune -o -path './out' -prune -o -name "${pattern##*/}" -print
    done
}

check() # check WHAT COMMAND...
{
    local what=$1 out
    shift
    if out=$("$@" 2>&1); then
        return 0
    fi
    echo "lint: $what"
    [[ -n $out ]] && echo "$out"
    bad=1
}

has()
{
    command -v "$1" >/dev/null || { echo "lint: no $1 here: 'make deps' installs it"; bad=1; return 1; }
}

mapfile -t c_files < <(sources '*.c' '*.h')
# other versions format otherwise
if has clang-format-14; then
    check "clang-format would change these" bash -c 'clang-format-14 --dry-run --Werror "$@" 2>&1 |
        sed -n "s/^\([^ :]*\):[0-9:]* error:.*/\1/p" | uniq | grep . && exit 1 || exit 0' clang-format "${c_files[@]}"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for header in include/dpro/*.h; do
    name=dpro/$(basename "$header")
    echo "#include <$name>" | tee "$work/alone.c" >"$work/alone.cc"
    check "$name does not compile alone in C11" \
        "${CC:-cc}" -std=c11 -Wall -Wextra -Werror -Iinclude -fsyntax-only "$work/alone.c"
    if has "${CXX:-c++}"; then
        check "$name does not compile alone in C++17" \
            "${CXX:-c++}" -std=c++17 -Wall -Wextra -Werror -Iinclude -fsyntax-only "$work/alone.cc"
    fi
done

# cli/ sees the public headers, its own and the system's; the public headers see each other and the system's
private=$(grep -nE '^ *# *include' cli/*.[ch] | grep -vE '<dpro/[a-z]+\.h>|<[a-z_]+\.h>|<sys/[a-z]+\.h>|"[a-z_]+\.h"')
quoted=$(grep -nhoE '^ *# *include *"[^"]+"' cli/*.[ch] | sed 's/.*"\(.*\)"/\1/' | sort -u |
    while read -r file; do [[ -f cli/$file ]] || echo "\"$file\" is not in cli/"; done)
[[ -z $private$quoted ]] || { printf 'lint: cli/ includes more than public headers\n%s\n%s\n' "$private" "$quoted"; bad=1; }
inner=$(grep -nE '^ *# *include' include/dpro/*.h | grep -vE '<dpro/[a-z]+\.h>|<std[a-z]+\.h>')
[[ -z $inner ]] || { printf 'lint: a public header includes a private one\n%s\n' "$inner"; bad=1; }

# who asks begins with a job, which loads, builds and learns alike for all
by_hand=$(grep -nE 'dpro_(trace_load|graph_build|model_build|probes_read|processes_help|whatif_run|optimize_run|replay_(run|predict|validate))' \
    cli/*.c python/dpro/*.py tests/fuzz/*.c 2>/dev/null)
[[ -z $by_hand ]] || { printf 'lint: more than a job is asked (include/dpro/job.h)\n%s\n' "$by_hand"; bad=1; }

# tracer/ runs in somebody else's process: it includes what it holds itself, and the system's
for file in $(grep -hoE '^ *# *include *("[^"]+"|<dpro/[^>]+>)' tracer/*.[ch] | sed 's/.*["<]\(.*\)[">]/\1/' | sort -u); do
    [[ -f tracer/$file ]] || { echo "lint: tracer/ includes $file, which is not in tracer/"; bad=1; }
done

if has mandoc; then
    for page in doc/man/*.[1-9]; do
        check "$page" mandoc -Tlint -Wwarning "$page"
    done
fi

[[ -f $build/compile_commands.json ]] || { echo "lint: no build in $build, calls are not looked at"; build=; }
check "the tree" python3 tools/lint_tree.py ${build:+--build "$build"}

mapfile -t py_files < <(sources '*.py')
check "Python files" python3 - "${py_files[@]}" <<'PY'
import ast, sys
for path in sys.argv[1:]:
    # the package runs in whatever Python a job has (pyproject.toml says from which on)
    oldest = (3, 8) if path.startswith(("python/", "./python/")) else None
    ast.parse(open(path, encoding="utf-8").read(), path, feature_version=oldest)
PY
mapfile -t sh_files < <(sources '*.sh' .ci/run)
for file in "${sh_files[@]}"; do
    check "$file" bash -n "$file"
done
has shellcheck && check "shell scripts" shellcheck -S warning "${sh_files[@]}"

[[ $bad -eq 0 ]] && echo "lint: fine"
exit "$bad"
