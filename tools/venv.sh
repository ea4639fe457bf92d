#!/bin/sh
# venv.sh [torch|tensorflow|mxnet|horovod]: makes .venv (torch; the default), where the live tests find torch and what else
# they need, or .venv-NAME of another framework, or completes it. What can't be had is no error: FOLDER.missing holds the
# reason, and the tests that need it are skipped with it.
set -eu
cd "$(dirname "$0")/.."
framework=${1:-torch} venv=.venv-${1:-} before=''
case $framework in
torch) # numpy: live tests compute with it; ZeroMQ frames for the tracer's; the backend of `pip install .`
    venv=.venv named=${DPRO_PYTHON:-} wanted='torch=2.13.0' packages='numpy pyzmq meson-python' ;;
tensorflow) named=${DPRO_TENSORFLOW_PYTHON:-} wanted='tensorflow-cpu=2.21.0' packages='tensorflow-cpu==2.21.0' ;;
mxnet) named=${DPRO_MXNET_PYTHON:-} wanted='mxnet=1.9.1' packages='mxnet==1.9.1 numpy==1.23.5' ;;
horovod) # built from its source: with Gloo, for TensorFlow and MXNet; its build wants an old setuptools and CMake
    named=${DPRO_HOROVOD_PYTHON:-} wanted='horovod=0.28.1'
    before='setuptools<66 wheel cmake==3.26.4'
    packages='mxnet==1.9.1 numpy==1.23.5 tensorflow-cpu==2.12.0 cloudpickle psutil pyyaml packaging cffi' ;;
*) echo "venv.sh: no environment for $framework: torch, tensorflow, mxnet or horovod" >&2; exit 2 ;;
esac

[ -z "$named" ] || exit 0 # somebody's own
has() # has PACKAGE[=VERSION-PREFIX]...
{
    "$venv/bin/python" - "$@" 2>/dev/null <<'PY'
import importlib.metadata, sys
for name, _, version in (word.partition("=") for word in sys.argv[1:]):
    assert importlib.metadata.version(name).startswith(version)
PY
}
others=''
[ "$framework" != torch ] || others=$packages
# shellcheck disable=SC2086
if has $wanted $others; then
    rm -f "$venv.missing"
    exit 0
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
give_up() # give_up WHAT
{
    reason=$(grep -v '^WARNING\|^ *$' "$log" | tail -n 1)
    echo "$1: $reason" >"$venv.missing"
    echo "$1 ($reason): tests that need it are skipped" >&2
    exit 0
}
pip() # one try and no long waits: without a network the tests go on soon
{
    "$venv/bin/python" -m pip --disable-pip-version-check install --retries 1 --timeout 20 "$@" </dev/null >"$log" 2>&1
}

echo "installing $wanted in $venv$([ "$framework" != horovod ] || echo ': it is compiled, which takes 10 minutes')" >&2
tools/install.sh venv >"$log" 2>&1 || give_up 'no python3-venv'
"$venv/bin/python" -m pip --version >/dev/null 2>&1 || "${PYTHON:-python3}" -m venv "$venv" >"$log" 2>&1 || give_up "no $venv"
# shellcheck disable=SC2086
[ -z "$before" ] || pip $before || give_up "no $before"
# shellcheck disable=SC2086
pip $packages || give_up "no $packages"
case $framework in
torch) # Never the one with CUDA: its gigabytes are not needed here.
    pip "torch==2.13.0+cpu" || pip --extra-index-url https://download.pytorch.org/whl/cpu "torch==2.13.0+cpu" ||
        give_up 'no torch 2.13.0' ;;
horovod)
    PATH=$PWD/$venv/bin:$PATH MAKEFLAGS=-j$(nproc) HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_WITHOUT_PYTORCH=1 \
        HOROVOD_WITH_MXNET=1 HOROVOD_WITH_TENSORFLOW=1 HOROVOD_CPU_OPERATIONS=GLOO pip --no-build-isolation --no-deps \
        horovod==0.28.1 || give_up 'no horovod 0.28.1' ;;
esac
rm -f "$venv.missing"
