#!/bin/sh
# mesh_auto.sh -- mesh: auto: the bits of one process on the mesh that was chosen, the table beside it, what is set is kept, a
# checkpoint goes on with another number of ranks, refusals, two hosts.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"

cat >run.yaml <<'YAML'
name: auto
model: {family: gpt2, layers: 4, width: 48, heads: 2, context: 32, dropout: 0.1}
data: {text: [builtin:stories], tokenizer: bytes, validation: 5%}
batch: {sequences: 12, leaf: 2}
train: {steps: 6, lr: 3e-3, schedule: constant, warmup: 2, seed: 3}
mesh: auto
device: {threads: 1}
checkpoint: {every: 0, keep: 2}
eval: {every: 6, sequences: 5, sample: "Once", sample_tokens: 4}
YAML
same() {
    [ "$(field summary weights_hash)" = "$want" ] || fail "$1: other weights"
    [ ! -s err ] || fail "$1 says: $(cat err)"
}

run 0 "$LINESHAFT" train run.yaml --json --set out=one
want=$(field summary weights_hash)
[ "$(field mesh mesh)" = dp=1 ] || fail "one rank is on $(field mesh mesh)"
run 0 "$LINESHAFT" train run.yaml --json -n 2 --set out=two
same "two ranks"
[ "$(field mesh ranks)" = 2 ] || fail "the choice is not for two ranks"
field mesh meshes | grep -q 'pp=2 zero-bubble' || fail "pipelines were not looked at"
cp out first
run 0 "$LINESHAFT" train run.yaml --json -n 2 --set out=again
[ "$(field mesh meshes out | tr -d ' ')" = "$(field mesh meshes first | tr -d ' ')" ] || fail "a second start looked at other numbers"
run 0 "$LINESHAFT" train run.yaml -n 2 --set out=people
says 'mesh: auto, 2 ranks on 1 node'
says 'recompute'
says 'not taken, '
says ' is taken: '

# What is set is kept; the words of the command line do the same as the file.
run 0 "$LINESHAFT" train run.yaml --json -n 4 --set mesh.pp=2 --set out=set
# A rank has its share of the machine's memory: half of it, then a quarter (a squared number of ranks would give a quarter and a sixteenth).
[ $((3 * $(field mesh free_bytes))) -gt "$(field mesh free_bytes first)" ] ||
    fail "4 ranks have $(field mesh free_bytes) bytes each, 2 ranks $(field mesh free_bytes first)"
same "a pipeline that is set"
[ "$(field start pp)" = 2 ] || fail "mesh.pp was not kept"
sed '/^mesh/d' run.yaml >plain.yaml
run 0 "$LINESHAFT" train plain.yaml --json -n 3 --set mesh=auto --set mesh.zero=1 --set out=words
same "--set mesh=auto"
[ "$(field start zero)" = 1 ] || fail "mesh.zero was not kept"

# A run goes on with other ranks, on the mesh that is best then.
run 0 "$LINESHAFT" train run.yaml --json -n 3 --set train.steps=3 --set out=moved
run 0 "$LINESHAFT" train run.yaml --json -n 2 --set out=moved
same "other ranks"

# The table alone.
run 0 "$LINESHAFT" plan mesh run.yaml -n 4 --nodes 2 --gbits 1 --memory 4
says 'mesh: auto, 4 ranks on 2 nodes, 4096 MiB of memory and '
says 'Gbit/s between nodes'
run 0 "$LINESHAFT" plan mesh plain.yaml -n 2 --json
python3 -c 'import json; d = json.load(open("out")); assert d["meshes"][0]["mesh"] == d["mesh"] and d["ranks"] == 2'
run 5 "$LINESHAFT" plan mesh run.yaml -n 4 --memory 0.01
says 'no mesh of 4 ranks that fits'
says 'a rank needs'
says 'more that need more memory'

# What cannot be.
run 2 "$LINESHAFT" plan mesh run.yaml -n 3 --nodes 2
says '3 ranks cannot be spread evenly over 2 nodes'
run 2 "$LINESHAFT" train run.yaml -n 3 --set mesh.pp=2 --set out=no
says 'which cannot be grouped so'
run 2 "$LINESHAFT" train run.yaml --set mesh=best --set out=no
says '"mesh" is a section'
[ ! -e no ] || fail "a refused run leaves a folder"

# Two hosts.
need_hosts
run 0 "$LINESHAFT" lab --nodes 2 -- "$LINESHAFT" train run.yaml --json -n 2 --set out=hosts
cp hosts/events.jsonl out
[ "$(field summary weights_hash)" = "$want" ] || fail "two hosts: other weights"
[ "$(field mesh ranks_per_node)" = 2 ] || fail "the choice does not know the hosts"
