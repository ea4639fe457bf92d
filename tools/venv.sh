#!/bin/sh
# venv.sh: makes .venv, where the live tests find torch and what else they need, or completes it. What can't be had is no
# error: .venv.missing holds the reason, and the tests that need it are skipped with it.
set -eu
cd "$(dirname "$0")/.."
torch=2.13.0
others='numpy pyzmq meson-python' # what live tests compute with; ZeroMQ frames for the tracer's; the backend of `pip install .`

[ -z "${DPRO_PYTHON:-}" ] || exit 0 # somebody's own
has() # has PACKAGE=VERSION-PREFIX...
{
    .venv/bin/python - "$@" 2>/dev/null <<'PY'
import importlib.metadata, sys
for name, _, version in (word.partition("=") for word in sys.argv[1:]):
    assert importlib.metadata.version(name).startswith(version)
PY
}
# shellcheck disable=SC2086
if has torch=$torch $others; then
    rm -f .venv.missing
    exit 0
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
give_up() # give_up WHAT
{
    reason=$(grep -v '^WARNING\|^ *$' "$log" | tail -n 1)
    echo "$1: $reason" >.venv.missing
    echo "$1 ($reason): tests that need it are skipped" >&2
    exit 0
}
pip() # one try and no long waits: without a network the tests go on soon
{
    .venv/bin/python -m pip --disable-pip-version-check install --retries 1 --timeout 20 "$@" </dev/null >"$log" 2>&1
}

echo "installing torch $torch in .venv" >&2
tools/install.sh venv >"$log" 2>&1 || give_up 'no python3-venv'
.venv/bin/python -m pip --version >/dev/null 2>&1 || "${PYTHON:-python3}" -m venv .venv >"$log" 2>&1 || give_up 'no .venv'
# shellcheck disable=SC2086
pip $others || give_up "no $others"
# Never the one with CUDA: its gigabytes are not needed here.
pip "torch==$torch+cpu" || pip --extra-index-url https://download.pytorch.org/whl/cpu "torch==$torch+cpu" ||
    give_up "no torch $torch"
rm -f .venv.missing
