#!/bin/sh
# comm_soak.sh -- the short form of bench/comm_soak.sh: jobs opened, closed and killed leave nothing.
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"
export LINESHAFT
run 0 sh "$LINESHAFT_ROOT/bench/comm_soak.sh" 8 4
says '8 jobs opened and closed: nothing left'
says '4 ranks killed with -9'
says 'one machine, worst time from the kill: to the error '
