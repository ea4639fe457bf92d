#!/usr/bin/env bash
# test_clean.sh: README's two commands, make demo and make test, of the last commit in a new Debian 12 with git and make and
# nothing else of this machine but its network: mirrors, pip's settings and the folders that those name. The last line counts
# cases; `make demo` is one. Needs root and debootstrap. DPRO_CLEAN_ROOT names a folder to keep the system in, for another run.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
skip() # skip REASON
{
    echo "skipped clean Debian 12: $1"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
}
[[ $(id -u) = 0 ]] || skip 'only root can make one'
command -v debootstrap >/dev/null || skip 'no debootstrap here (apt install debootstrap)'
unshare --mount true 2>/dev/null || skip 'no namespace can be made here'

root=${DPRO_CLEAN_ROOT:-}
if [[ -z $root ]]; then
    root=$(mktemp -d)
    chmod 755 "$root" # its / is anyone's, as in every system
    trap 'rm -rf --one-file-system "$root"' EXIT
fi
log=$root.log
mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 2>/dev/null | grep -m 1 '/debian$')
if [[ ! -e $root/usr/bin/make ]] &&
    ! debootstrap --variant=minbase --include=git,make,ca-certificates bookworm "$root" "${mirror:-http://deb.debian.org/debian}" >"$log" 2>&1; then
    skip "debootstrap: $(tail -n 1 "$log")"
fi

for file in /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
    [[ ! -e $file ]] || { mkdir -p "$root$(dirname "$file")" && cp -L "$file" "$root$file"; }
done
apt-config dump | grep -i '^Acquire::[a-z]*::Proxy' >"$root/etc/apt/apt.conf.d/90proxy"
for file in .config/pip/pip.conf .pip/pip.conf; do
    [[ ! -e $HOME/$file ]] || { mkdir -p "$root/root/$(dirname "$file")" && cp -L "$HOME/$file" "$root/root/$file"; }
done
rm -rf "$root/root/dpro"
git clone --quiet --no-local . "$root/root/dpro" || exit

variables=(HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin)
while IFS= read -r variable; do
    variables+=("$variable")
done < <(env | grep -iE '^(PIP_|http_proxy=|https_proxy=|no_proxy=)')
# folders that pip's settings name, with wheels or an index
folders=$({ cat /etc/pip.conf "$HOME/.config/pip/pip.conf" "$HOME/.pip/pip.conf"; env | grep '^PIP_'; } 2>/dev/null |
    sed 's,file://,,g; s,[^ ]*://[^ ]*,,g' | grep -oE '/[^ ]+' | sed 's,/simple/*$,,' | sort -u) # an index names files beside it

clean() # clean COMMAND...: in the new system; what it mounted and started ends with it
{
    # shellcheck disable=SC2016
    unshare --mount --pid --fork bash -c '
        root=$1 folders=$2
        shift 2
        mount --make-rslave /
        for folder in $folders; do
            [[ ! -d $folder ]] || { mkdir -p "$root$folder" && mount --bind -o ro "$folder" "$root$folder"; }
        done
        mount -t proc proc "$root/proc" && mount --rbind /sys "$root/sys" && mount --rbind /dev "$root/dev" || exit
        exec chroot "$root" env -i "$@"' clean "$root" "$folders" "${variables[@]}" "$@" </dev/null
}

passed=0 failed=0 skipped=0
echo "== make demo in a clean Debian 12"
if clean make --no-print-directory -C /root/dpro demo >"$log" 2>&1; then
    passed=1
    head -n 3 "$log"
else
    failed=1
    tail -n 20 "$log"
fi
echo "== make test in a clean Debian 12"
clean make --no-print-directory -C /root/dpro test 2>&1 | tee "$log"
if [[ $(tail -n 1 "$log") =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed(,\ ([0-9]+)\ skipped)?$ ]]; then
    passed=$((passed + BASH_REMATCH[1])) failed=$((failed + BASH_REMATCH[2])) skipped=$((${BASH_REMATCH[4]:-0}))
else
    failed=$((failed + 1))
fi
rm -f "$log"
echo "$passed passed, $failed failed, $skipped skipped"
[[ $failed -eq 0 ]]
