#!/usr/bin/env bash
# wheel.sh: builds a wheel in out/wheel that needs nothing on the machine, in a clean Debian 11, whose C library is the oldest that
# Debian still serves, and tries it in clean Debian 11, 12 and 13 without compilers: install, replay and diagnose a bundled trace, ask
# from Python. Without root or debootstrap it is built here, and not tried. The last line counts the systems. DPRO_WHEEL_ROOTS
# names a folder to keep the systems in, for another run.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tools/root.sh
out=$PWD/out/wheel python=${PYTHON:-python3}
rm -rf "$out"
mkdir -p "$out/raw"
log=$out/log

fail() # fail WHAT
{
    tail -n 20 "$log"
    echo "wheel.sh: $1"
    exit 1
}

build() # build IN...: IN runs a command where /tmp/dpro-wheel is the source, and leaves the wheel in it
{
    "$@" sh -c 'cd /tmp/dpro-wheel && python3 -m venv venv && venv/bin/pip install -q "meson-python>=0.18" ninja &&
        PATH=$PWD/venv/bin:$PATH venv/bin/pip wheel -q --no-build-isolation --no-deps -w raw . &&
        for file in $(ldconfig -p | sed -n "s,.*\(libisal\|libsqlite3\)\.so\.[0-9]* .*=> ,,p"); do cp -L "$file" raw/ || exit; done &&
        cp /usr/share/doc/libisal2/copyright raw/libisal2.copyright' >"$log" 2>&1
}

copy_source() # copy_source FOLDER: what git knows of this tree
{
    rm -rf "$1"
    mkdir -p "$1"
    git ls-files -z | xargs -0 tar -cf - | tar -xf - -C "$1"
}

why=$(why_no_root)
roots=${DPRO_WHEEL_ROOTS:-$(mktemp -d)}
[[ -n ${DPRO_WHEEL_ROOTS:-} ]] || trap 'rm -rf --one-file-system "$roots"' EXIT
if [[ -z $why ]] && ! make_root bullseye "$roots/build" \
    gcc libc6-dev pkg-config libisal-dev libsqlite3-dev libopenmpi-dev python3-venv; then
    why="no Debian 11: $(tail -n 1 "$roots/build.log")"
fi
if [[ -z $why ]]; then
    echo "building in a clean Debian 11"
    copy_source "$roots/build/tmp/dpro-wheel"
    build in_root "$roots/build" || fail "it could not be built"
    cp "$roots"/build/tmp/dpro-wheel/raw/* "$out/raw"
else
    echo "building here ($why)"
    copy_source /tmp/dpro-wheel
    build env || fail "it could not be built"
    cp /tmp/dpro-wheel/raw/* "$out/raw"
    rm -rf /tmp/dpro-wheel
fi
"$python" tools/wheel.py "$out"/raw/*.whl "$out" "$out"/raw/lib*.so* "$out"/raw/*.copyright || fail "it is not whole"
wheel=$(basename "$out"/*.whl)
audit=.venv-notebook/bin/auditwheel # a second opinion, where tools/venv.sh notebook installed it
if [[ -z $why && -x $audit ]]; then
    "$audit" show "$out/$wheel" >"$log" 2>&1 && tr '\n' ' ' <"$log" | grep -o 'following platform tag: "manylinux[^"]*"' || fail "auditwheel refuses it"
fi

passed=0 failed=0 skipped=0
trace=torch-ddp-gloo-gpt-n2-memory
for suite in bullseye bookworm trixie; do
    root=$roots/$suite
    if [[ -n $why ]] || ! make_root "$suite" "$root" python3 python3-venv; then
        echo "skipped $suite: ${why:-$(tail -n 1 "$root.log")}"
        skipped=$((skipped + 1))
        continue
    fi
    rm -rf "$root/tmp/try"
    mkdir -p "$root/tmp/try"
    cp -r "$out/$wheel" "tests/data/$trace" "$root/tmp/try"
    start=$(date +%s%N)
    if in_root "$root" sh -euc "cd /tmp/try
        ! command -v gcc && ! command -v cc
        python3 -m venv venv
        venv/bin/pip install -q --no-index --no-compile ./$wheel
        venv/bin/dpro --version
        venv/bin/dpro replay -q $trace | head -n 4
        venv/bin/dpro export -q --sqlite job.db $trace
        venv/bin/dpro profile -q -o recorded -- venv/bin/python -c 'print(1)'
        venv/bin/python -c 'import dpro; print(dpro.open(\"$trace\").diagnose()[\"verdict\"])'
        test -e venv/share/man/man1/dpro.1 -a -e venv/share/bash-completion/completions/dpro" >"$log" 2>&1; then
        passed=$((passed + 1))
        echo "$suite: fine, installed and tried in $((($(date +%s%N) - start) / 1000000000 + 1)) s; $(sed -n '/^gcc/p' "$log")"
    else
        failed=$((failed + 1))
        echo "FAILED $suite"
        tail -n 20 "$log"
    fi
done
echo "$out/$wheel"
echo "$passed passed, $failed failed$([[ $skipped -eq 0 ]] || echo ", $skipped skipped")"
[[ $failed -eq 0 ]]
