#!/bin/bash
# Run on every node of a cluster at once: `deploy/every-node.sh HEAD_IP:PORT NUM_NODES COMMAND…` starts Ray on all of them, runs the command
# on the head when so many are there, and stops Ray again (`ray symmetric-run`). The checkout lies at the same place everywhere.
set -euo pipefail
address=$1 num_nodes=$2
shift 2
export PATH=$PWD/.venv/bin:$PATH # `ray symmetric-run` calls `ray` by its name
export RAY_USAGE_STATS_ENABLED=0 RAY_AUTH_MODE=token
export RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=${RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT:-600}

# The others wait for the head here: Ray gives up after half a minute, and a head that shares its disk with many may take longer.
host=${address%:*} port=${address##*:}
if [[ " $(hostname -I) " != *" $host "* ]]; then
    for _ in $(seq 600); do
        if (exec 3<>"/dev/tcp/$host/$port") 2>/dev/null; then break; fi
        sleep 1
    done
    # What becomes of the command is the head's to report: a node that loses its head, because it is done, calls that a failure.
    ray symmetric-run --address "$address" --min-nodes "$num_nodes" -- "$@" || echo "every-node: Ray ended on this node with status $?"
    exit 0
fi
exec ray symmetric-run --address "$address" --min-nodes "$num_nodes" -- "$@"
