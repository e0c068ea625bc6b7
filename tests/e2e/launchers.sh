#!/bin/sh
# launchers.sh -- tasks that another launcher started find each other and train as one job, with the bits of one process: by the variables that Open MPI sets, and
# under the real mpirun (Open MPI, MPICH), torchrun and srun, those that are installed. A Slurm of one machine is started in the scratch folder, where
# this user is root and has its programs; others are left out with a sentence.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"
peers=$HOME/.cache/lineshaft/peers/bin
OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1
export OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM OMP_NUM_THREADS

small_run
run 0 "$LINESHAFT" train run.yaml --json --set train.steps=5 --set out=one
want=$(field summary weights_hash)

# same NAME: the last run was one job of two ranks, with the weights of one process, and left no file behind.
same() {
    [ "$(field start ranks) $(field summary weights_hash)" = "2 $want" ] ||
        fail "$1: $(field start ranks) ranks, $(field summary weights_hash), expected 2 and $want"
    [ -z "$(find "$XDG_CACHE_HOME/lineshaft/meet" -type f 2>/dev/null)" ] || fail "$1 left its file behind"
}
train() { # train OUT COMMAND...: under a launcher
    name=$1
    shift
    run 0 timeout 100 "$@" "$LINESHAFT" train run.yaml --json --wait 60 --set train.steps=5 --set "out=$name"
    grep '^{' out >lines
    mv lines out
    same "$name"
}

# By hand, as Open MPI sets them: the second task comes first, and a job of the same number was killed before.
vars() { # vars RANK WORLD NAMESPACE
    echo "OMPI_COMM_WORLD_RANK=$1 OMPI_COMM_WORLD_SIZE=$2 OMPI_COMM_WORLD_LOCAL_RANK=$1 OMPI_COMM_WORLD_LOCAL_SIZE=$2 PMIX_NAMESPACE=$3"
}
pair() { # pair NAMESPACE
    rm -rf pair
    # shellcheck disable=SC2046 # words are what is wanted
    env $(vars 1 2 "$1") "$LINESHAFT" train run.yaml --json --wait 60 --set train.steps=5 --set out=pair >out.1 2>err.1 &
    pid=$!
    # shellcheck disable=SC2046
    run 0 env $(vars 0 2 "$1") "$LINESHAFT" train run.yaml --json --wait 60 --set train.steps=5 --set out=pair
    wait $pid || fail "the second task: $(cat err.1)"
    [ ! -s out.1 ] || fail "the second task says $(cat out.1)"
    same "two tasks"
}
pair first
# shellcheck disable=SC2046
env $(vars 0 2 killed) "$LINESHAFT" train run.yaml --wait 60 --set out=killed >/dev/null 2>&1 &
pid=$!
there() { [ -n "$(find "$XDG_CACHE_HOME/lineshaft/meet" -type f 2>/dev/null)" ]; }
eventually there || fail "the first task left no file"
[ "$(stat -c %a "$XDG_CACHE_HOME"/lineshaft/meet/*)" = 600 ] || fail "others can read the secret"
kill -9 $pid
wait $pid 2>/dev/null
there || fail "a killed task cannot have removed its file"
pair killed

# One that has no others, and variables that mean nothing.
# shellcheck disable=SC2046
run 8 env $(vars 1 2 alone) "$LINESHAFT" train run.yaml --wait 1 --set out=alone
says 'rank 1 of 2 (OMPI_COMM_WORLD_RANK) found no first task of its job within 1 s'
# The first one, whose others do not come: what it says is about tasks, not about agents.
# shellcheck disable=SC2046
run 8 env $(vars 0 2 lonely) "$LINESHAFT" train run.yaml --wait 1 --set out=lonely
says '1 of 2 nodes did not join at'
says 'See whether all 2 tasks of openmpi run this command and can reach'
# Variables that cannot be true are said, and not followed.
run 0 env OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=2 "$LINESHAFT" train run.yaml --set train.steps=5 --set out=untrue
says 'this process does not take it for a task of a launcher'
run 0 env RANK=captain "$LINESHAFT" train run.yaml --json --set train.steps=5 --set out=captain
[ "$(field start ranks)" = 1 ] || fail "a stray RANK"

tried=
if command -v mpirun.openmpi >/dev/null; then
    train openmpi mpirun.openmpi -n 2 --oversubscribe --bind-to none
    tried="$tried mpirun(Open MPI)"
fi
if command -v mpirun.mpich >/dev/null; then
    train mpich mpirun.mpich -n 2
    tried="$tried mpirun(MPICH)"
fi
torchrun=$(command -v torchrun || echo "$peers/torchrun")
if [ -x "$torchrun" ]; then
    train torchrun "$torchrun" --nproc-per-node 2 --master-port $((20000 + $$ % 20000)) --no-python
    tried="$tried torchrun"
fi

# shellcheck source=tests/slurm.sh
. "$LINESHAFT_ROOT/tests/slurm.sh"
if slurm_is_here; then
    # shellcheck disable=SC2086
    trap 'kill $daemons 2>/dev/null; wait' EXIT
    if slurm_up; then
        train slurm srun -n 2
        tried="$tried srun"
    else
        echo "Slurm does not start here: $(tail -n 2 "$slurm"/*.log "$slurm"/*.out 2>/dev/null)"
    fi
fi
echo "launchers that were tried:${tried:- none is installed}"
