#!/bin/sh
# Makes or refreshes the virtual environment with the pinned packages: make_venv.sh PYTHON VENV
set -eu
python=$1
venv=$2

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "setup: $python is older than Python 3.11; name a newer one with PYTHON=..." >&2
    exit 1
}
if command -v uv >/dev/null 2>&1; then
    [ -x "$venv/bin/python" ] || uv venv --quiet --seed --python "$python" "$venv"
    uv pip install --quiet --python "$venv/bin/python" -r requirements/dev.txt
else
    # Debian keeps ensurepip in a package of its own, and says so in venv's error text.
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r requirements/dev.txt
fi
