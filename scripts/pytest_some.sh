#!/bin/sh
# Runs a pytest command that may have nothing to collect yet: pytest's exit code 5 then passes.
"$@"
code=$?
if [ "$code" -eq 5 ]; then
    echo "nothing to run yet: $*"
    exit 0
fi
exit "$code"
