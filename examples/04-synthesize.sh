#!/bin/sh
# An allgather for two machines that are not there, from their description to MSCCL XML: no GPU, no
# network, seconds on a laptop.
#
#   sh examples/04-synthesize.sh [folder for the results]
#
# The machines are NDv2: eight V100 GPUs in an NVLink mesh, and one NIC for all of them. The same
# from 'nvidia-smi topo -m' of machines of your own: docs/synthesis.md.
set -eu

out=${1:-results}
mkdir -p "$out"
cd "$out"

# 1. Describe the cluster. 'headrace topology presets' lists what else is known.
headrace topology preset ndv2_taccl_1mb --nodes 2 -o cluster.topology

# 2. Every generator makes candidates: templates, trees, matching, solvers. The best is proven, and
#    compared with the time that no algorithm can beat.
echo "== without a sketch"
headrace collectives synthesize cluster.topology --collective allgather --size 16MB \
    -o free.plan

# 3. Or sketch what you know: GPU 0 sends to GPU 1 of the other machine, no other link between them
#    is used, and both machines are symmetric (ranks 0 to 7 map to 8 to 15, and back).
cat >sketch.json <<'SKETCH'
{
  "nnodes": 2,
  "intranode_sketch": {"strategy": "none"},
  "internode_sketch": {"strategy": "relay", "internode_conn": {"0": [1]}},
  "symmetry_offsets": [[8, 16]],
  "hyperparameters": {"input_chunkup": 2}
}
SKETCH
echo "== with a sketch"
headrace collectives synthesize cluster.topology --collective allgather --size 16MB \
    --sketch sketch.json -o sketched.plan

# 4. Export it to MSCCL. The file is read back and proven; XML of other tools can be, too.
echo "== exported"
headrace export sketched.plan -o allgather.xml
headrace verify allgather.xml

# 5. Look at it: a Gantt chart of every link, and the cut that bounds the time.
headrace report sketched.plan -o allgather.html
