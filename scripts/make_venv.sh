#!/bin/sh
# Makes or refreshes the virtual environment with the pinned packages: make_venv.sh PYTHON VENV
set -eu
python=$1
venv=$2

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "setup: $python is older than Python 3.11; name a newer one with PYTHON=..." >&2
    exit 1
}
# Debian keeps ensurepip in a package of its own, and says so in venv's error text.
echo "setup: installing the pinned packages into $venv; the first time takes a minute or two" >&2
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
# uv is only quicker; where it cannot reach what pip reaches (other certificates), pip does it.
if command -v uv >/dev/null 2>&1; then
    uv pip install --quiet --python "$venv/bin/python" -r requirements/dev.txt && exit 0
fi
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r requirements/dev.txt
