#!/bin/sh
# model.sh -- the rules of membership under docs/design/*.pml, checked by spin: as they are they must
# hold in every order of events, and with one rule left out (-DBUG_...) spin must find what breaks.
set -eu
cd "$(dirname "$0")/.."
models=$PWD/docs/design
sh tools/deps.sh spin gcc
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

# check MODEL WHAT "SPIN FLAGS": says how many errors spin found. WHAT: safety (assertions, dead ends) or liveness.
check() {
    flags='-DSAFETY -DNOCLAIM'
    how=
    if [ "$2" = liveness ]; then
        flags='-DNFAIR=3'
        how='-a -f'
    fi
    rm -f pan*
    # shellcheck disable=SC2086
    spin $3 -a "$models/$1.pml" >log 2>&1 && gcc -w -O1 $flags -DMEMLIM=4000 -o pan pan.c >>log 2>&1 || {
        cat log >&2
        exit 1
    }
    # shellcheck disable=SC2086
    ./pan $how -m2000000 >log 2>&1
    sed -n 's/.*errors: \([0-9]*\)$/\1/p' log
    if grep -q 'max search depth too small\|memory limit\|out of memory' log; then
        echo "model: $1 $3 was not searched to its end" >&2
        exit 1
    fi
}

holds() { # MODEL WHAT "FLAGS"
    found=$(check "$1" "$2" "$3")
    states=$(sed -n 's/^ *\([0-9]*\) states, stored.*/\1/p' log)
    [ "$found" = 0 ] || {
        echo "model: $1 $3 ($2) does not hold:" >&2
        grep -E 'assertion|acceptance|invalid' log >&2
        exit 1
    }
    echo "  holds  $1 ($2) $3, $states states"
}

breaks() { # MODEL WHAT "FLAGS"
    found=$(check "$1" "$2" "$3")
    [ "$found" != 0 ] || {
        echo "model: $1 $3 ($2): a rule was left out, and nothing broke" >&2
        exit 1
    }
    echo "  breaks $1 ($2) $3, as it must"
}

holds recovery safety -DKILLS=1
holds recovery safety -DCRASHES=0
holds recovery liveness -DKILLS=1
holds recovery liveness -DCRASHES=0
for bug in LOWEST FORGET DEAF TOKEN; do
    breaks recovery safety "-DBUG_$bug -DKILLS=1"
done
breaks recovery liveness "-DBUG_ASLEEP -DKILLS=1"
holds succession safety -DTERMS=4
holds succession safety -DRESTARTS
for bug in TWICE OLD MINORITY TIE; do
    breaks succession safety "-DBUG_$bug"
done
# Five nodes, two of which lead: what three cannot show.
five='-DNODES=5 -DHOPE=10 -DTERMS=4 -DRESTARTS'
holds succession safety "$five"
breaks succession safety "$five -DBUG_SKIP"
