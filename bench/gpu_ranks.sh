#!/bin/sh
# gpu_ranks.sh [SIDE...] -- several ranks on NVIDIA GPUs, GPT-2 124M, 64 x 1024 over all ranks, in bf16: ours by NCCL and through
# the host, beside PyTorch's DDP, FSDP2 and a Megatron-style tensor parallel, in turn, one table. Where there are fewer cards than
# ranks, ranks share them, and NCCL goes over the loopback: such a figure says nothing about NVLink. First the wire:
# `lineshaft bench comm --device cuda`.
#   one          one process                     host, nccl   train.reduce=fast, exchange.device host or nccl
#   ordered      nccl in ordered mode            zero1, zero2, zero3   nccl with mesh.zero=1, 2, 3
#   ordered3     zero3 in ordered mode           host3        host with mesh.zero=3
#   pp, pphost   a stage for each rank, messages by nccl or through the host
#   tp, tphost   all ranks one tensor-parallel group, by NCCL or through the host; sp: nccl, with divided rows
#   cp           all ranks share every sequence, nccl
#   ddp, fsdp, megatron    PyTorch over NCCL; the last one is the peer of tp
#
#   RANKS="2 4"  ROUNDS=1  STEPS=15  LIMIT=100 (seconds of a process)
#   PEERS=../shared/peers/gpu  PYTHON=python3  LINESHAFT=./lineshaft   as in bench/gpu.sh
#   MPS=1        start nvidia-cuda-mps-control with a folder of its own, so that ranks run side by side on a card; end it afterwards
set -eu
cd "$(dirname "$0")/.."
[ -n "${LINESHAFT:-}" ] || make --no-print-directory lineshaft cuda >/dev/null
if [ "${MPS:-}" = 1 ]; then
    folder=$(mktemp -d)
    export CUDA_MPS_PIPE_DIRECTORY="$folder/pipe" CUDA_MPS_LOG_DIRECTORY="$folder/log"
    mkdir "$folder/pipe" "$folder/log"
    nvidia-cuda-mps-control -d
    trap 'echo quit | nvidia-cuda-mps-control; rm -rf "$folder"' EXIT
fi
python3 -B bench/gpu_ranks.py "$@"
