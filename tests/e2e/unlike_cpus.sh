#!/bin/sh
# unlike_cpus.sh -- ordered mode in bf16 on ranks whose CPUs multiply differently: all take what each of them can, in one line, and the
# weights are those of one process that multiplies so. Two tasks of a launcher stand for two machines (launchers.sh).
# shellcheck source=tests/lib.sh
. "$LINESHAFT_ROOT/tests/lib.sh"
grep -q avx512bw /proc/cpuinfo || {
    echo "skip: products of pairs, also emulated, need AVX-512"
    exit 77
}
small_run
sed -i 's/steps: 40/steps: 5/' run.yaml
echo "precision: bf16" >>run.yaml

one() { # one WAY: of one process
    run 0 env LINESHAFT_BF16="$1" "$LINESHAFT" train run.yaml --json --set "out=one-$1"
    field summary weights_hash
}
one off >off
one emulate-avx512 >avx512
one emulate-amx >amx
cmp -s off avx512 && fail "pairs give the bits of products without them: this test proves nothing"
cmp -s amx avx512 && fail "AMX gives the bits of AVX512_BF16: this test proves nothing"

# pair NAME WAY ISA WAY ISA: rank 0 and rank 1.
pair() {
    vars="OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=$1"
    # shellcheck disable=SC2086 # words are what is wanted
    env $vars OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_RANK=1 LINESHAFT_BF16="$4" LINESHAFT_DEVICE_ISA="$5" \
        "$LINESHAFT" train run.yaml --json --wait 60 --set "out=$1" >out.1 2>err.1 &
    pid=$!
    # shellcheck disable=SC2086
    run 0 env $vars OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_LOCAL_RANK=0 LINESHAFT_BF16="$2" LINESHAFT_DEVICE_ISA="$3" \
        "$LINESHAFT" train run.yaml --json --wait 60 --set "out=$1"
    wait $pid || fail "the second task: $(cat err.1)"
    field summary weights_hash >got
}
agrees() { # agrees BITS TEXT: the last pair
    cmp -s "$1" got || fail "two unlike ranks have weights $(cat got), one process with $1: $(cat "$1")"
    [ "$(grep -c 'ranks have unlike CPUs' err)" = 1 ] || fail "not said once: $(cat err)"
    says "$2"
}
pair amx-none emulate-amx avx512 off avx512
agrees off 'multiply bf16 matrices widened to fp32, which all can (the best of them by AMX)'
pair none-avx512 auto avx2 emulate-avx512 avx512
agrees off 'widened to fp32, which all can (the best of them by AVX512_BF16)'
pair alike emulate-avx512 avx512 emulate-avx512 avx512
cmp -s avx512 got || fail "two ranks alike have weights $(cat got), one process $(cat avx512)"
grep -q 'unlike CPUs' err && fail "ranks alike are called unlike"
if grep -q avx512_bf16 /proc/cpuinfo && ! grep -q amx_bf16 /proc/cpuinfo; then
    pair real auto avx512 emulate-avx512 avx512 # the instruction and its emulation have the same bits
    cmp -s avx512 got || fail "AVX512_BF16 and its emulation differ"
    grep -q 'unlike CPUs' err && fail "the instruction and its emulation are called unlike"
fi
exit 0
