#!/bin/sh
# other_python.sh: prints an interpreter of another build than .venv's, of a version that PyTorch is had for; nothing where there
# is none. Debian's is not position-independent and links its library statically; pyenv's are built by what it is told.
cd "$(dirname "$0")/.." || exit
base='import os, sys; print(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))'
ours=$(.venv/bin/python -c "$base" 2>/dev/null)
for python in /usr/bin/python3 "$HOME"/.pyenv/versions/3.11.*/bin/python3 "$HOME"/.pyenv/versions/3.1[0-9].*/bin/python3; do
    [ -x "$python" ] && "$python" -c 'import ensurepip, venv' 2>/dev/null || continue
    [ "$("$python" -c "$base")" = "$ours" ] || { echo "$python"; exit; }
done
