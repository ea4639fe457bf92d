#!/bin/sh
# venv.sh [torch|other|tensorflow|mxnet|horovod|horovod-pytorch|bench|notebook|launchers]: makes .venv (torch; the default), where the live tests find
# torch and what else they need, or .venv-NAME of another framework or of `make bench`, or completes it. What can't be had is no error: FOLDER.missing
# holds the reason, and the tests that need it are skipped with it.
set -eu
cd "$(dirname "$0")/.."
framework=${1:-torch} venv=.venv-${1:-} before=''
case $framework in
torch) # numpy: live tests compute with it; ZeroMQ frames for the tracer's; the backend of `pip install .`
    venv=.venv named=${DPRO_PYTHON:-} wanted='torch=2.13.0' packages='numpy pyzmq meson-python' ;;
other) # the same in another build of Python, which DPRO_OTHER_PYTHON names
    named='' PYTHON=$DPRO_OTHER_PYTHON wanted='torch=2.13.0' packages='numpy pyzmq meson-python' ;;
tensorflow) named=${DPRO_TENSORFLOW_PYTHON:-} wanted='tensorflow-cpu=2.21.0' packages='tensorflow-cpu==2.21.0' ;;
mxnet) named=${DPRO_MXNET_PYTHON:-} wanted='mxnet=1.9.1' packages='mxnet==1.9.1 numpy==1.23.5' ;;
horovod) # built from its source: with Gloo, for TensorFlow and MXNet; its build wants an old setuptools and CMake
    named=${DPRO_HOROVOD_PYTHON:-} wanted='horovod=0.28.1'
    before='setuptools<66 wheel cmake==3.26.4'
    packages='mxnet==1.9.1 numpy==1.23.5 tensorflow-cpu==2.12.0 cloudpickle psutil pyyaml packaging cffi' ;;
horovod-pytorch) # the same for PyTorch
    named=${DPRO_HOROVOD_PYTORCH_PYTHON:-} wanted='horovod=0.28.1'
    before='setuptools<66 wheel cmake==3.26.4'
    packages='numpy cloudpickle psutil pyyaml packaging cffi' ;;
bench) named='' wanted='pandas scipy' packages='pandas scipy' ;; # peers
notebook) # what tables become, and what runs examples/notebooks
    named='' wanted='pandas pyarrow polars nbclient ipykernel mcp prometheus-client matplotlib mypy auditwheel' packages='numpy pandas pyarrow polars nbclient ipykernel mcp prometheus-client matplotlib mypy auditwheel' ;;
launchers) # of jobs, beside torchrun; torch is that of .venv
    named='' wanted='accelerate lightning' packages='accelerate lightning' ;;
*) echo "venv.sh: no environment for $framework: torch, other, tensorflow, mxnet, horovod, horovod-pytorch, bench, notebook or launchers" >&2
    exit 2 ;;
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
case $framework in torch | other) others=$packages ;; esac
# shellcheck disable=SC2086
if has $wanted $others; then
    rm -f "$venv.missing"
    exit 0
fi

work=$(mktemp -d)
log=$work/log
trap 'rm -rf "$work"' EXIT
give_up() # give_up WHAT
{
    # what pip tried again says what was wrong; what it says last is often only that nothing was found
    reason=$({ grep -m 1 '^WARNING: Retrying' "$log" || grep -v '^WARNING\|^ *$' "$log" | tail -n 1; } | cut -c 1-400)
    echo "$1: $reason" >"$venv.missing"
    grep '^ERROR\|^error\|^WARNING: Retrying' "$log" | head -n 8 >&2 || true
    echo "$1 ($reason): tests that need it are skipped" >&2
    exit 0
}
pip() # pip VERB...: one try and no long waits, so that without a network the tests go on soon
{
    verb=$1
    shift
    "$venv/bin/python" -m pip --disable-pip-version-check "$verb" --retries 1 --timeout 20 "$@" </dev/null >"$log" 2>&1
}
install_torch() # never the one with CUDA: its gigabytes are not needed here
{
    pip install "torch==2.13.0+cpu" || pip install --extra-index-url https://download.pytorch.org/whl/cpu "torch==2.13.0+cpu" ||
        give_up 'no torch 2.13.0'
}
install_horovod() # install_horovod WHAT: for the frameworks that HOROVOD_WITH_... name
{
    PATH=$PWD/$venv/bin:$PATH MAKEFLAGS=-j$(nproc) HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_CPU_OPERATIONS=GLOO \
        pip install --no-cache-dir --no-build-isolation --no-deps "$1" || give_up 'no horovod 0.28.1'
} # no cache: what pip keeps there may be for other frameworks
fetch_horovod() # its source, which takes PyTorch for C++14
{
    pip download --no-binary horovod --no-build-isolation --no-deps --dest "$work" horovod==0.28.1 ||
        give_up 'no source of horovod 0.28.1'
    tar -C "$work" -xzf "$work/horovod-0.28.1.tar.gz"
    source=$work/horovod-0.28.1
    sed -i 's/CMAKE_CXX_STANDARD 14/CMAKE_CXX_STANDARD 17/' "$source/CMakeLists.txt" "$source/horovod/torch/CMakeLists.txt"
}

compiled=''
[ -z "$before" ] || compiled=': it is compiled, which takes 10 minutes'
echo "installing $wanted in $venv$compiled" >&2
tools/install.sh venv >"$log" 2>&1 || give_up 'no python3-venv'
"$venv/bin/python" -m pip --version >/dev/null 2>&1 || "${PYTHON:-python3}" -m venv "$venv" >"$log" 2>&1 || give_up "no $venv"
if [ "$framework" = launchers ]; then
    .venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$work/path" 2>"$log" || give_up 'no .venv with torch'
    cp "$work/path" "$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch.pth"
fi
# shellcheck disable=SC2086
[ -z "$before" ] || pip install $before || give_up "no $before"
# shellcheck disable=SC2086
pip install $packages || give_up "no $packages"
case $framework in
torch | other) install_torch ;;
horovod) HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITH_MXNET=1 HOROVOD_WITHOUT_PYTORCH=1 install_horovod horovod==0.28.1 ;;
horovod-pytorch)
    install_torch
    fetch_horovod
    HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 install_horovod "$source" ;;
esac
rm -f "$venv.missing"
