# shellcheck shell=sh
# slurm.sh -- a Slurm of one machine in the scratch folder; sourced after lib.sh. Its processes are in $daemons: the script ends them.
daemons=
slurm_is_here() {
    command -v srun >/dev/null && command -v slurmctld >/dev/null && command -v slurmd >/dev/null && command -v munged >/dev/null && [ "$(id -u)" = 0 ]
}
slurm_up() {
    slurm=$PWD/slurm host=$(hostname -s) port=$((20000 + $$ % 20000))
    mkdir -p "$slurm/state" "$slurm/spool"
    head -c 128 /dev/urandom >"$slurm/munge.key"
    chmod 600 "$slurm/munge.key"
    cat >"$slurm/slurm.conf" <<CONF
ClusterName=here
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmdPort=$((port + 1))
SlurmUser=root
SlurmdUser=root
AuthInfo=socket=$slurm/munge.socket,cred_expire=5
StateSaveLocation=$slurm/state
SlurmdSpoolDir=$slurm/spool
SlurmctldPidFile=$slurm/slurmctld.pid
SlurmdPidFile=$slurm/slurmd.pid
SlurmctldLogFile=$slurm/slurmctld.log
SlurmdLogFile=$slurm/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=main Nodes=$host Default=YES State=UP
CONF
    export SLURM_CONF="$slurm/slurm.conf"
    munged --force --foreground --socket="$slurm/munge.socket" --key-file="$slurm/munge.key" --pid-file="$slurm/munged.pid" \
        --log-file="$slurm/munged.log" --seed-file="$slurm/munge.seed" >"$slurm/munged.out" 2>&1 &
    daemons=$!
    eventually test -S "$slurm/munge.socket" || return 1
    slurmctld -D >"$slurm/ctld.out" 2>&1 &
    daemons="$daemons $!"
    slurmd -D -N "$host" >"$slurm/d.out" 2>&1 &
    daemons="$daemons $!"
    eventually sh -c "sinfo -h 2>/dev/null | grep -q idle"
}
