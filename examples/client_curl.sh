#!/bin/sh
# A client of polybus in curl: keeps a message, consumes it, reads it again by offset, calls a service.
# Usage: client_curl.sh [http://host:port]
set -eu
node=${1:-http://127.0.0.1:15555}

# A topic with a group; both stay if they are there already.
curl -fsS "$node/declare/curl-orders/billing" >/dev/null

# Stored, and on disk when the answer comes.
curl -fsS --data-binary '{"item":"tea"}' "$node/produce/curl-orders" >/dev/null

# The group's next message; this waits for one. Consuming again confirms it.
curl -fsS "$node/consume/curl-orders/billing"
echo

# The same record by its offset, without any group, as the JSON API tells it.
curl -fsS "$node/api/v1/topics/curl-orders/records/0"
echo

# A call to the service calc/add, whatever wire it is on: its answer is in `payload`.
curl -fsS -H 'content-type: application/json' \
    -d '{"name": "calc/add", "payload": "[1, 2]", "timeout_s": 5}' "$node/api/v1/call"
echo

# The same as a URL that a browser opens: the segments after the name become the arguments.
curl -fsS "$node/rpc/calc/add/1/2"
echo
