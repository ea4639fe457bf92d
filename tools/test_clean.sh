#!/usr/bin/env bash
# test_clean.sh: README's two commands, make demo and make test, of the last commit in a new Debian 12 with git and make and
# nothing else of this machine but its network: mirrors, pip's settings and the folders that those name. The last line counts
# cases; `make demo` is one. Needs root and debootstrap. DPRO_CLEAN_ROOT names a folder to keep the system in, for another run.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tools/root.sh
skip() # skip REASON
{
    echo "skipped clean Debian 12: $1"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
}
why=$(why_no_root)
[[ -z $why ]] || skip "$why"

root=${DPRO_CLEAN_ROOT:-}
if [[ -z $root ]]; then
    root=$(mktemp -d)
    trap 'rm -rf --one-file-system "$root"' EXIT
fi
log=$root.log
make_root bookworm "$root" git make || skip "debootstrap: $(tail -n 1 "$log")"
rm -rf "$root/root/dpro"
git clone --quiet --no-local . "$root/root/dpro" || exit

passed=0 failed=0 skipped=0
echo "== make demo in a clean Debian 12"
if in_root "$root" make --no-print-directory -C /root/dpro demo >"$log" 2>&1; then
    passed=1
    head -n 3 "$log"
else
    failed=1
    tail -n 20 "$log"
fi
echo "== make test in a clean Debian 12"
in_root "$root" make --no-print-directory -C /root/dpro test 2>&1 | tee "$log"
if [[ $(tail -n 1 "$log") =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed(,\ ([0-9]+)\ skipped)?$ ]]; then
    passed=$((passed + BASH_REMATCH[1])) failed=$((failed + BASH_REMATCH[2])) skipped=$((${BASH_REMATCH[4]:-0}))
else
    failed=$((failed + 1))
fi
rm -f "$log"
echo "$passed passed, $failed failed, $skipped skipped"
[[ $failed -eq 0 ]]
