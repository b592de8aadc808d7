#!/bin/bash
# The nodes of a Slurm job by their addresses. Without arguments it prints a line with name and address for each. `on-node.sh ADDRESS COMMAND`
# runs a shell command on the node with the address (`training.launch`), beside the step that holds all nodes for Ray: hence --overlap.
set -euo pipefail
nodes() {
    # The address as Slurm has it, which is that of the network between nodes; a node's own name may lead to loopback there.
    for node in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
        name=$(scontrol show node "$node" | sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p')
        echo "$node $(getent ahostsv4 "$name" | awk 'NR == 1 {print $1}')"
    done
}
if [ $# -eq 0 ]; then
    nodes
    exit
fi
node=$(nodes | awk -v address="$1" '$2 == address {print $1}')
exec srun --overlap --nodes 1 --ntasks 1 --nodelist "$node" sh -c "$2"
