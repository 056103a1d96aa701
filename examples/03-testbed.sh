#!/bin/sh
# Measure a network, plan for it, and train on it, step by step. Needs root for shaped links (without
# it the testbed falls back to loopback, with a warning).
#
#   sh examples/03-testbed.sh [folder for the results]
#
# On a real cluster the testbed goes: run 'headrace collectives measure' and the training script
# with torchrun on every host, and plan anywhere in between.
set -eu

here=$(dirname "$0")
out=${1:-results}
mkdir -p "$out"

# Two racks of two hosts; ranks 0 and 2 share a rack, 1 and 3 the other.
network="$here/testbed-2x2.toml"
order=interleaved

# 1. Measure the network. Racks and shared uplinks are found from probes alone.
headrace collectives measure --testbed "$network" --order "$order" -o "$out/network.profile"

# 2. Plan for every collective and size. Every program is proven before it is kept.
#    'headrace show' prints the book, 'headrace verify' proves it all again.
headrace collectives plan "$out/network.profile" -o "$out/network.book"
headrace verify "$out/network.book"

# 3. An ordinary training script, one rank a host: first without plans, then with them.
#    All ranks share this machine's cores, so one thread each, as torchrun has it.
export OMP_NUM_THREADS=1
train() {
    headrace testbed run "$network" --order "$order" --time-limit 2min -- python "$here/01-train.py"
}
echo "== templates: proven programs, independent of this network"
train
echo "== the plan book"
HEADRACE_PLAN_BOOK="$out/network.book" train
