#!/usr/bin/env bash
# deb.sh: a package of dpro for this Debian, in out/deb, and a try of it in a clean one of the same release, where apt installs what it
# needs. Without root or debootstrap it is not tried. The last line counts the systems. DPRO_WHEEL_ROOTS: as in wheel.sh.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tools/root.sh
out=$PWD/out/deb log=$PWD/out/deb.log
suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
rm -rf "$out"
mkdir -p "$out"

fail() # fail WHAT
{
    tail -n 20 "$log"
    echo "deb.sh: $1"
    exit 1
}

needs() # needs FILE...: the packages of the libraries that they load
{
    ldd "$@" | sed -n 's,.*=> \(/[^ ]*\) .*,\1,p' | sort -u | while IFS= read -r file; do
        dpkg -S "$(realpath "$file")" "$file" 2>/dev/null | head -n 1 | cut -d: -f1
    done | sort -u | grep -v '^libc6$' | paste -sd, | sed 's/,/, /g'
}

for tool in dpkg-deb objdump; do
    command -v "$tool" >/dev/null || { echo "deb.sh: no $tool here"; exit 1; }
done
{ meson setup --wipe out/build-deb . -Dprefix=/usr -Dtests=false || meson setup out/build-deb . -Dprefix=/usr -Dtests=false; } >"$log" 2>&1 &&
    meson compile -C out/build-deb >>"$log" 2>&1 &&
    DESTDIR=$out/root meson install -C out/build-deb --quiet --strip >>"$log" 2>&1 || fail "it could not be built"
gzip -9n "$out"/root/usr/share/man/man1/*.1
version=$("$out/root/usr/bin/dpro" --version | sed -n '1s/dpro //p') architecture=$(dpkg --print-architecture)
mapfile -t loaded < <(find "$out/root/usr/bin" "$out/root/usr/lib" -type f \( -name dpro -o -name '*.so*' \) ! -name libdpro_mpi.so)
libc=$(objdump -p "${loaded[@]}" | grep -oE '\bGLIBC_[0-9]+\.[0-9]+' | sed 's/GLIBC_//' | sort -V | tail -n 1)
mkdir -p "$out/root/DEBIAN"
cat >"$out/root/DEBIAN/control" <<CONTROL
Package: dpro
Version: $version
Architecture: $architecture
Maintainer: dpro <dpro@localhost>
Section: science
Priority: optional
Depends: libc6 (>= $libc), $(needs "${loaded[@]}")
Recommends: python3 (>= 3.8)
Suggests: openmpi-bin, python3-numpy, python3-pandas
Installed-Size: $(du -sk "$out/root/usr" | cut -f1)
Description: performance diagnosis of distributed deep-learning training
 Records training jobs or reads their profilers' traces, joins all ranks into
 one graph, replays it, and says why an iteration is slow and what helps.
CONTROL
package=dpro_${version}_$architecture.deb
dpkg-deb --root-owner-group --build "$out/root" "$out/$package" >>"$log" 2>&1 || fail "it could not be packed"
rm -rf "$out/root"
dpkg-deb -f "$out/$package" Package Version Depends

why=$(why_no_root)
roots=${DPRO_WHEEL_ROOTS:-$(mktemp -d)}
[[ -n ${DPRO_WHEEL_ROOTS:-} ]] || trap 'rm -rf --one-file-system "$roots"' EXIT
root=$roots/$suite-deb passed=0 failed=0 skipped=0
if [[ -n $why ]] || ! make_root "$suite" "$root" python3; then
    echo "skipped $suite: ${why:-$(tail -n 1 "$root.log")}"
    skipped=1
else
    rm -rf "$root/tmp/try"
    mkdir -p "$root/tmp/try"
    cp -r "$out/$package" tests/data/torch-ddp-gloo-gpt-n2-memory "$root/tmp/try"
    if in_root "$root" sh -euc "cd /tmp/try
        export DEBIAN_FRONTEND=noninteractive
        apt-get update && apt-get install -y --reinstall --no-install-recommends ./$package
        dpro --version
        dpro replay -q torch-ddp-gloo-gpt-n2-memory | head -n 4
        dpro profile -q -o recorded -- python3 -c 'print(1)'
        test -e /usr/share/bash-completion/completions/dpro" >"$log" 2>&1; then
        passed=1
        echo "$suite: fine"
    else
        failed=1
        echo "FAILED $suite"
        tail -n 20 "$log"
    fi
fi
echo "$out/$package"
echo "$passed passed, $failed failed$([[ $skipped -eq 0 ]] || echo ", $skipped skipped")"
[[ $failed -eq 0 ]]
