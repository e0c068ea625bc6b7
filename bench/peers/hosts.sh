#!/bin/sh
# hosts.sh -- "hosts" for peers: network namespaces joined by a bridge in a namespace of its own, every link shaped
# in both directions. Needs root. Host I of HOSTS (a name, in the environment) has the address 10.214.0.I on eth0.
#   HOSTS=name hosts.sh up N LINK      LINK as tc writes rates (1gbit), or "none"
#   HOSTS=name hosts.sh run I COMMAND...
#   HOSTS=name hosts.sh each N COMMAND...   on all of them, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
#   HOSTS=name hosts.sh down           also when they were only half made
# Called with an address in place of these words it is the remote shell that mpirun asks for.
set -eu
self=$(cd "$(dirname "$0")" && pwd)/$(basename "$0")
: "${HOSTS:?the name of the hosts}"

run() { # run I COMMAND...: in the namespace of host I, under its own name, with a /sys that shows its links
    i=$1
    shift
    # shellcheck disable=SC2016
    exec nsenter --net="/run/netns/$HOSTS-$i" unshare --uts --mount sh -c \
        'hostname "host$0" && mount -t sysfs sysfs /sys && exec "$@"' "$i" "$@"
}

up() { # up N LINK
    switch=$HOSTS-s
    case $2 in
    [0-9]gbit | *mbit | *kbit) burst=256kb ;;
    *) burst=2mb ;;
    esac
    ip netns add "$switch"
    ip -n "$switch" link add br0 type bridge
    ip -n "$switch" link set br0 up
    for i in $(seq "$1"); do
        host=$HOSTS-$i
        ip netns add "$host"
        ip -n "$switch" link add "p$i" type veth peer name eth0 netns "$host"
        ip -n "$switch" link set "p$i" master br0 up
        ip -n "$host" link set lo up
        ip -n "$host" addr add "10.214.0.$i/24" dev eth0
        ip -n "$host" link set eth0 up
        [ "$2" != none ] || continue
        tc -n "$host" qdisc add dev eth0 root tbf rate "$2" burst $burst latency 20ms
        tc -n "$switch" qdisc add dev "p$i" root tbf rate "$2" burst $burst latency 20ms
    done
}

each() { # each N COMMAND...: ends when all have; fails when one did
    n=$1
    shift
    pids=
    for r in $(seq $((n - 1)) -1 0); do
        RANK=$r WORLD_SIZE=$n MASTER_ADDR=10.214.0.1 MASTER_PORT=29533 GLOO_SOCKET_IFNAME=eth0 \
            sh "$self" run $((r + 1)) "$@" &
        pids="$pids $!"
    done
    status=0
    for p in $pids; do
        wait "$p" || status=$?
    done
    return $status
}

case ${1:-} in
up) up "$2" "$3" ;;
down)
    for name in $(ip netns list | awk -v h="$HOSTS-" 'index($1, h) == 1 { print $1 }'); do
        ip netns del "$name"
    done
    ;;
run)
    shift
    run "$@"
    ;;
each)
    shift
    each "$@"
    ;;
*)
    while [ "${1#-}" != "$1" ]; do shift; done
    case $1 in
    10.214.0.*)
        i=${1##*.}
        shift
        run "$i" sh -c "$*"
        ;;
    *)
        sed -n '2,8p' "$0" >&2
        exit 2
        ;;
    esac
    ;;
esac
