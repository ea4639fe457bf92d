#!/bin/sh
# install.sh [--check] GROUP...: installs what a group (build, test, memory, fuzz, venv, bench) needs and this machine lacks, with apt.
# With --check it installs nothing and says in one line what is missing.
set -eu
check=0
if [ "${1:-}" = --check ]; then
    check=1
    shift
fi

packages=
need() # need PACKAGE COMMAND...: the package is missing unless the command works
{
    package=$1
    shift
    "$@" >/dev/null 2>&1 || packages="$packages $package"
}

has_header() # has_header HEADER...: the compiler finds them
{
    for header in "$@"; do
        echo "#include <$header>"
    done | ${CC:-cc} -E -x c - >/dev/null 2>&1
}

mpi()
{
    need openmpi-bin command -v mpirun
    need libopenmpi-dev pkg-config --exists mpi-c
}

for group in "$@"; do
    case $group in
    build)
        need gcc command -v "${CC:-cc}"
        need libc6-dev has_header stdio.h
        need meson command -v meson
        need ninja-build command -v ninja
        need pkg-config command -v pkg-config
        need libisal-dev pkg-config --exists libisal
        need libsqlite3-dev pkg-config --exists sqlite3
        need libcmocka-dev pkg-config --exists cmocka # the build folder holds the tests too
        ;;
    test)
        need python3 command -v "${PYTHON:-python3}"
        # torch.compile makes C++ of modules
        need g++ command -v "${CXX:-g++}"
        need python3-dev "${PYTHON:-python3}" -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")'
        # cli/pages looks at pages, cli/mpi reads a trace with several processes
        need chromium sh -c 'command -v chromium || command -v chromium-browser || command -v google-chrome || command -v chrome'
        mpi
        # lint
        need clang-format-14 command -v clang-format-14
        need mandoc command -v mandoc
        need shellcheck command -v shellcheck
        ;;
    venv)
        need python3-venv "${PYTHON:-python3}" -c 'import ensurepip'
        ;;
    memory)
        need valgrind command -v valgrind
        need libc6-dbg valgrind -q true # it can't start without the loader's symbols
        ;;
    fuzz)
        need clang sh -c 'ls /usr/bin /usr/local/bin | grep -qE "^clang(-[0-9]+)?$"'
        need libclang-rt-14-dev test -n "$(find /usr/lib/llvm* /usr/lib/clang* -name 'libclang_rt.fuzzer-*' -print -quit 2>/dev/null)"
        ;;
    bench)
        need python3-venv "${PYTHON:-python3}" -c 'import ensurepip'
        need g++ command -v "${CXX:-c++}"
        need libsimdjson-dev pkg-config --exists simdjson
        mpi
        ;;
    *)
        echo "install.sh: no such group: $group" >&2
        exit 2
        ;;
    esac
done
[ -n "$packages" ] || exit 0

hand="install these by hand (their Debian names):$packages"
if [ $check = 1 ]; then
    echo "dpro: something is missing: run 'make deps', or $hand" >&2
    exit 1
fi
if ! command -v apt-get >/dev/null 2>&1; then
    echo "dpro: no apt-get here; $hand" >&2
    exit 1
fi
sudo=
if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null 2>&1; then
        echo "dpro: neither root nor sudo; $hand" >&2
        exit 1
    fi
    sudo='sudo DEBIAN_FRONTEND=noninteractive'
fi

echo "installing:$packages" >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
apt() # lists may be old or absent: install, and only where that fails update and try again
{
    # shellcheck disable=SC2086
    $sudo apt-get install -y --no-install-recommends $packages </dev/null >>"$log" 2>&1
}
if ! apt && ! { $sudo apt-get update </dev/null >>"$log" 2>&1 && apt; }; then
    tail -n 5 "$log" >&2
    echo "dpro: apt-get failed; $hand" >&2
    exit 1
fi
