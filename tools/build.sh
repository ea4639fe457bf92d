#!/bin/sh
# build.sh FOLDER [MESON OPTION...]: configures FOLDER when it is new, or when a pull, an option or newly installed packages changed
# how it is built, and builds it. Says something only when something is wrong.
set -eu
build=$1
shift
log=$(mktemp)
trap 'rm -f "$log"' EXIT

quietly()
{
    "$@" >"$log" 2>&1 && return 0
    cat "$log" >&2
    return 1
}

if [ ! -f "$build/build.ninja" ]; then
    quietly meson setup "$build" "$@"
elif [ $# -gt 0 ] || [ -n "$(find /var/lib/dpkg/status -newer "$build/build.ninja" 2> /dev/null)" ] || [ -n "$(find . -path "./$build*" -prune -o \( -name meson.build -o -name meson_options.txt \) \
    -newer "$build/build.ninja" -print)" ]; then
    # another version of Meson or of the compiler makes a folder that can't be reconfigured: start it again
    meson setup --reconfigure "$build" "$@" >"$log" 2>&1 || quietly meson setup --wipe "$build" "$@"
fi
status=0
ninja -C "$build" --quiet >"$log" 2>&1 || status=$?
sed '/^ninja: \(no work to do\|Entering directory\)/d' "$log"
exit $status
