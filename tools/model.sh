#!/bin/sh
# model.sh -- the rules of membership under docs/design/*.pml, checked by spin: as they are they must
# hold in every order of events, and with one rule left out (-DBUG_...) spin must find what breaks.
# As many searches at once as there are cores; what they found is told in the order below.
set -eu
cd "$(dirname "$0")/.."
models=$PWD/docs/design
sh tools/deps.sh spin gcc
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

# search MODEL WHAT "SPIN FLAGS", in an empty folder: leaves what spin says in log. WHAT: safety
# (assertions, dead ends) or liveness.
search() {
    flags='-DSAFETY -DNOCLAIM'
    how=
    if [ "$2" = liveness ]; then
        flags='-DNFAIR=3'
        how='-a -f'
    fi
    # shellcheck disable=SC2086
    spin $3 -a "$models/$1.pml" >log 2>&1 && gcc -w -O1 $flags -DMEMLIM=4000 -o pan pan.c >>log 2>&1 || {
        cat log
        return 1
    }
    # shellcheck disable=SC2086
    ./pan $how -m2000000 >log 2>&1
    if grep -q 'max search depth too small\|memory limit\|out of memory' log; then
        echo "model: $1 $3 was not searched to its end"
        return 1
    fi
}

# one WHETHER MODEL WHAT "FLAGS": it holds, or breaks, as it must; a line that says so.
one() {
    search "$2" "$3" "$4" || return
    found=$(sed -n 's/.*errors: \([0-9]*\)$/\1/p' log)
    case $1:$found in
    holds:0) echo "  holds  $2 ($3) $4, $(sed -n 's/^ *\([0-9]*\) states, stored.*/\1/p' log) states" ;;
    breaks:[1-9]*) echo "  breaks $2 ($3) $4, as it must" ;;
    breaks:*)
        echo "model: $2 $4 ($3): a rule was left out, and nothing broke"
        return 1
        ;;
    *)
        echo "model: $2 $4 ($3) does not hold:"
        grep -E 'assertion|acceptance|invalid' log
        return 1
        ;;
    esac
}

# Five nodes, two of which lead: what three cannot show.
five='-DNODES=5 -DHOPE=10 -DTERMS=4 -DRESTARTS'
cat >list <<END
holds|failover|safety|$five
holds|recovery|safety|-DKILLS=1
holds|recovery|safety|-DCRASHES=0
holds|recovery|liveness|-DKILLS=1
holds|recovery|liveness|-DCRASHES=0
breaks|recovery|safety|-DBUG_LOWEST -DKILLS=1
breaks|recovery|safety|-DBUG_FORGET -DKILLS=1
breaks|recovery|safety|-DBUG_DEAF -DKILLS=1
breaks|recovery|safety|-DBUG_TOKEN -DKILLS=1
breaks|recovery|liveness|-DBUG_ASLEEP -DKILLS=1
holds|failover|safety|-DTERMS=4
holds|failover|safety|-DRESTARTS
breaks|failover|safety|-DBUG_TWICE
breaks|failover|safety|-DBUG_OLD
breaks|failover|safety|-DBUG_MINORITY
breaks|failover|safety|-DBUG_TIE
breaks|failover|safety|$five -DBUG_SKIP
END

# Each of these takes the next line that nobody has taken, whose folder can be made.
take_what_is_left() {
    n=0
    while IFS='|' read -r whether model what flags; do
        n=$((n + 1))
        mkdir "$n" 2>/dev/null || continue
        if (cd "$n" && one "$whether" "$model" "$what" "$flags" >told 2>&1); then touch "$n/well"; fi
        rm -f "$n"/pan*
    done <list
}
cores=$(nproc)
while [ "$cores" -gt 0 ]; do
    take_what_is_left &
    cores=$((cores - 1))
done
wait
bad=0
for n in $(seq "$(wc -l <list)"); do
    cat "$n/told"
    [ -e "$n/well" ] || bad=1
done
exit $bad
