#!/bin/sh
# Runs a pytest command that may have nothing to collect yet (pytest's exit code 5); that is said and passes.
"$@" --collect-only -qq >/dev/null 2>&1
if [ "$?" -eq 5 ]; then
    echo "nothing to run yet: $*"
    exit 0
fi
exec "$@"
