#!/usr/bin/env bash
# demo_live.sh BUILD: records a real training on two ranks, replays it, and sets the prediction beside what was measured.
# As root the ranks are on two make-believe machines joined by a link of 1 Gbit/s (hosts.sh); else on this one.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
python=${DPRO_PYTHON:-.venv/bin/python}
if ! "$python" -c 'import importlib.metadata as m; m.version("torch")' 2>/dev/null; then
    echo "dpro: this demo trains with PyTorch: $(cat .venv.missing 2>/dev/null || echo "no torch for $python")" >&2
    exit 1
fi

out=out/demo-live
rm -rf "$out"
mkdir -p "$out"
export OMP_NUM_THREADS=1
export KINETO_LOG_LEVEL=99 TORCH_CPP_LOG_LEVEL=ERROR # torch's own chatter would hide what the demo shows
(echo -15 >/proc/self/autogroup) 2>/dev/null || true # ahead of other sessions' jobs, where root may
dpro=$build/dpro
profile=("$dpro" profile -o "$out/trace" --)
torchrun=("$python" -m torch.distributed.run)
train=(examples/gpt.py --device cpu --steps 55)

if [[ $(id -u) == 0 ]] && command -v ip >/dev/null && command -v tc >/dev/null && tools/hosts.sh true 2>/dev/null; then
    echo 'Two machines (network namespaces), a link of 1 Gbit/s between them; on each:'
    echo "  dpro profile -o $out/trace -- torchrun --nnodes=2 --node-rank=\$HOST ... ${train[*]}"
    # shellcheck disable=SC2016
    tools/hosts.sh --rate 1gbit bash -c 'exec "${@/@HOST@/$HOST}"' - "${profile[@]}" "${torchrun[@]}" --nnodes=2 \
        --nproc-per-node=1 --node-rank=@HOST@ --master-addr=10.77.0.1 --master-port=29500 "${train[@]}"
else
    echo "Two ranks on this machine (as root: on two make-believe ones with a real network's speed):"
    echo "  dpro profile -o $out/trace -- torchrun --nproc-per-node=2 ${train[*]}"
    "${profile[@]}" "${torchrun[@]}" --standalone --nproc-per-node=2 "${train[@]}"
fi

echo
echo "  dpro replay $out/trace"
"$dpro" replay "$out/trace" -o "$out"
"$python" - "$out" <<'PY'
import glob, json, os, statistics, sys

out = sys.argv[1]
with open(os.path.join(out, "replay.json"), encoding="utf-8") as file:
    replay = json.load(file)
times_ms = []
for path in glob.glob(os.path.join(out, "trace", "host*", "rank*", "rank.json")):
    with open(path, encoding="utf-8") as file:
        steps = json.load(file)["steps"]
    times_ms += [(step["end_ns"] - step["start_ns"]) / 1e6 for step in steps["before"] + steps["after"]]
predicted, profiled = replay["predicted"]["iteration_ms"], replay["measured"]["iteration_ms"]
print(f"\n{'predicted by the replay':<40}{predicted:8.1f} ms")
print(f"{'measured, while it was recorded':<40}{profiled:8.1f} ms  {100 * (predicted / profiled - 1):+.1f} %")
if times_ms:
    unprofiled = statistics.median(times_ms)
    print(f"{'measured, just before and after':<40}{unprofiled:8.1f} ms  {100 * (predicted / unprofiled - 1):+.1f} %"
          f"   (median of {len(times_ms)} steps without a profiler)")
PY
cat <<END

Look at:
  $out/report.html          open it in a browser
  $out/timeline.json.gz     open it at https://ui.perfetto.dev
  $out/trace                what was recorded
END
