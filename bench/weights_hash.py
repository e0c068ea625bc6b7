"""weights_hash.py -- the hash of the weights of many small runs beside a recorded table; see weights_hash.sh.

A line of ROWS is a name, a model and words: KEY=VALUE for --set, and
  n=4                 ranks
  lab=2               hosts of a lab, each with n ranks
  plan=10:KILL:1      what happens to ranks (tests/train_and_kill.py); heals=memory: where the last of the lost ones came from
  drill=...           and when they meet again (docs/guide/failures.md)
  pairs=emulate-amx   products of bf16 as AVX512_BF16 or AMX make them (LINESHAFT_BF16), in plain C: other bits than without them
  |                   the run stops here, and goes on with the words behind it instead of those before it
"""
import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import sys

RUN = """\
name: hash
MODEL
data: {text: [builtin:stories], tokenizer: bytes, validation: 5%}
batch: {sequences: 8, leaf: 1, group: 1}
train: {steps: 10, lr: 3e-3, schedule: cosine, warmup: 3, clip: 0.5, weight_decay: 0.1, seed: 3}
device: {threads: 1}
checkpoint: {every: 0, keep: 2}
eval: {every: 0, sequences: 4, sample: ""}
"""
SIZE = "layers: 4, width: 32, heads: 4, context: 16, mlp: 50"
MODELS = {
    "gpt2": "family: gpt2, dropout: 0.1, " + SIZE,
    "llama": "family: llama, kv_heads: 2, tied: false, " + SIZE,
    "mistral": "family: mistral, kv_heads: 2, window: 6, window_from: 1, " + SIZE,
    "qwen2": "family: qwen2, kv_heads: 2, " + SIZE,
    "qwen3": "family: qwen3, kv_heads: 2, head_size: 6, " + SIZE,
    "mixtral": "family: mixtral, kv_heads: 2, experts: 4, experts_used: 2, " + SIZE,
    "qwen3_moe": "family: qwen3_moe, kv_heads: 2, experts: 8, experts_used: 3, " + SIZE,
    "olmoe": "family: olmoe, experts: 4, experts_used: 2, experts_norm: false, " + SIZE,
    "olmo2": "family: olmo2, kv_heads: 2, " + SIZE,
    "phi3": "family: phi3, kv_heads: 2, tied: false, window: 6, " + SIZE,
    "lora-gpt2": "import: ../hf-gpt2, context: 16",  # fine-tuning starts from what prepare() makes
    "lora-llama": "import: ../hf-llama, context: 16",
    "lora-olmoe": "import: ../hf-olmoe, context: 16",
}
ROWS = """
# One process: families, precisions, optimizers, courses of the learning rate, data.
gpt2                  gpt2
llama                 llama
mistral               mistral
qwen2                 qwen2
qwen3                 qwen3
mixtral               mixtral
qwen3_moe             qwen3_moe
olmoe                 olmoe
olmo2                 olmo2
phi3                  phi3
no-dropout            gpt2       model.dropout=0
context               llama      model.rope_scaling=llama3 model.rope_factor=4 model.rope_original=8 model.context=32
balance-z             mixtral    train.balance_loss=0.01 train.z_loss=0.001
threads               gpt2       device.threads=2
group                 gpt2       batch.leaf=2 batch.group=4
pack                  gpt2       device.pack=on
generic               llama      device.isa=generic
bf16                  gpt2       precision=bf16
bf16-llama            llama      precision=bf16
bf16-olmoe            olmoe      precision=bf16
bf16-avx512           gpt2       precision=bf16 device.isa=avx512 pairs=emulate-avx512
bf16-amx              olmoe      precision=bf16 device.isa=avx512 pairs=emulate-amx
bf16-stochastic       gpt2       precision=bf16 train.rounding=stochastic
fp16                  gpt2       precision=fp16 device.isa=reference
fp16-dropped          gpt2       precision=fp16 device.isa=reference train.loss_scale=16777216 train.loss_scale_interval=3
lamb                  gpt2       train.optimizer=lamb
muon                  gpt2       train.optimizer=muon train.adamw_lr=1e-3 train.momentum=0.9
muon-llama            llama      train.optimizer=muon
lamb-bf16             qwen3      train.optimizer=lamb precision=bf16 train.rounding=stochastic
muon-bf16             qwen3      train.optimizer=muon precision=bf16
lion                  gpt2       train.optimizer=lion train.lr=1e-3
sgd                   gpt2       train.optimizer=sgd train.lr=0.1
sgd-plain             llama      train.optimizer=sgd train.lr=0.1 train.nesterov=false train.momentum=0.8
lion-bf16             qwen3      train.optimizer=lion train.lr=1e-3 precision=bf16 train.rounding=stochastic
adamw-otherwise       gpt2       train.beta1=0.8 train.beta2=0.99 train.eps=1e-6 train.weight_decay=0 train.clip=0
constant              gpt2       train.schedule=constant
linear                gpt2       train.schedule=linear train.min_lr=1e-4
wsd                   gpt2       train.schedule=wsd train.decay=4
lr-rule               gpt2       train.lr_rule=sqrt train.lr_base_batch=32 train.warmup=0
seed                  gpt2       train.seed=4
until-tokens          gpt2       train.steps=0 train.tokens=900
until-loss            gpt2       train.steps=40 train.target_loss=4.7 eval.every=4
evaluated             gpt2       eval.every=3 eval.sample=Once eval.sample_tokens=4
ramp                  gpt2       batch.ramp=6 batch.ramp_from=2
isolate               llama      data.text=[../b.jsonl] data.isolate=true
isolate-learned       gpt2       data.text=[../b.jsonl] data.isolate=true
documents             llama      data.text=[../b.jsonl]
unshuffled            gpt2       data.shuffle=false
mixture-of-texts      gpt2       data.text=[../a.txt,../b.jsonl] data.weights=[3,1]
short-text            gpt2       data.text=[../a.txt] train.steps=20
shards                gpt2       data.text=[] data.shards=[../stories.lst]
words                 gpt2       data.tokenizer=../words
chat                  llama      data.text=[../chat.jsonl] data.template=chatml data.validation=0 model.context=128
recompute-selective   gpt2       train.recompute=selective
recompute-full        gpt2       train.recompute=full
recompute-blocks      llama      train.recompute=full train.recompute_blocks=2
recompute-experts     mixtral    train.recompute=selective
recompute-olmoe       olmoe      train.recompute=full
offload               gpt2       device.offload=disk
freeze                gpt2       train.freeze=["*wte*","*h.0.*","*ln_*"]
freeze-experts        mixtral    train.freeze=["*.experts.3.*","*norm*"]
tune                  lora-llama
lora                  lora-llama lora.rank=4
lora-gpt2             lora-gpt2  lora.rank=2 lora.alpha=3 lora.targets=[c_attn,c_fc]
lora-olmoe            lora-olmoe lora.rank=4
lora-bf16             lora-llama lora.rank=4 precision=bf16
lora-dora             lora-llama lora.rank=4 lora.dora=true
neftune               llama      train.neftune=5

# Replicas: ordered sums, so all of these have the bits of one process.
dp2                   gpt2       n=2
dp3                   gpt2       n=3
dp5                   llama      n=5
dp8                   mixtral    n=8
dp-weights            gpt2       n=3 mesh.weights=[3,2,1]
dp-balance            gpt2       n=2 mesh.balance=auto
dp-bucket             gpt2       n=3 mesh.bucket=65536
dp-ramp               gpt2       n=3 batch.ramp=6 batch.ramp_from=2
dp-compare-replay     gpt2       n=3 heal.compare=2 heal.replay=1
zero1                 gpt2       n=3 mesh.zero=1
zero2                 gpt2       n=3 mesh.zero=2
zero3                 gpt2       n=3 mesh.zero=3
zero3-more-ranks      gpt2       n=8 mesh.zero=3
zero3-full            llama      n=4 mesh.zero=3 train.recompute=full
zero3-experts         olmoe      n=2 mesh.zero=3
zero1-replay          gpt2       n=3 mesh.zero=1 heal.replay=2
zero1-no-buddies      gpt2       n=3 mesh.zero=1 heal.buddies=off
shard-zero1           gpt2       n=4 mesh.zero=1 mesh.shard=2
shard-zero2           gpt2       n=4 mesh.zero=2 mesh.shard=2
shard-zero3           gpt2       n=4 mesh.zero=3 mesh.shard=2
zero1-lamb            gpt2       n=3 mesh.zero=1 train.optimizer=lamb
zero1-muon            gpt2       n=3 mesh.zero=1 train.optimizer=muon train.adamw_lr=1e-3 train.momentum=0.9
zero3-lion            gpt2       n=3 mesh.zero=3 train.optimizer=lion train.lr=1e-3
zero1-sgd-offload     gpt2       n=2 mesh.zero=1 device.offload=disk train.optimizer=sgd train.lr=0.1
zero2-phi3            phi3       n=3 mesh.zero=2
dp-muon               llama      n=2 train.optimizer=muon
zero1-bf16            gpt2       n=3 mesh.zero=1 precision=bf16
zero1-bf16-avx512     gpt2       n=3 mesh.zero=1 precision=bf16 device.isa=avx512 pairs=emulate-avx512
zero2-stochastic      gpt2       n=3 mesh.zero=2 precision=bf16 train.rounding=stochastic
zero3-stochastic      gpt2       n=3 mesh.zero=3 precision=bf16 train.rounding=stochastic
zero1-offload         gpt2       n=2 mesh.zero=1 device.offload=disk
zero3-shard-offload   gpt2       n=4 mesh.zero=3 mesh.shard=2 device.offload=disk
dp-fp16               gpt2       n=2 precision=fp16 device.isa=reference train.loss_scale=16777216 train.loss_scale_interval=3
dp-freeze             gpt2       n=2 train.freeze=["*wte*","*h.0.*","*ln_*"]
dp-lora               lora-llama n=2 lora.rank=4
auto                  gpt2       n=4 mesh=auto

# Pipelines: the bits of one process too.
pp2                   gpt2       mesh.pp=2
pp2-gpipe             gpt2       mesh.pp=2 mesh.schedule=gpipe
pp2-interleaved       gpt2       mesh.pp=2 mesh.schedule=interleaved
pp2-zero-bubble       gpt2       mesh.pp=2 mesh.schedule=zero-bubble
pp3                   llama      mesh.pp=3
pp4-zero-bubble       llama      mesh.pp=4 mesh.schedule=zero-bubble train.recompute=full
pp2-interleaved-full  olmoe      mesh.pp=2 mesh.schedule=interleaved train.recompute=full
pp2-bf16              gpt2       mesh.pp=2 precision=bf16 train.rounding=stochastic
pp2-lora              lora-llama mesh.pp=2 lora.rank=4
pp2-freeze            gpt2       mesh.pp=2 train.freeze=["*wte*","*h.0.*","*ln_*"]
pp2-isolate           llama      mesh.pp=2 data.text=[../b.jsonl] data.isolate=true
pp2-isolate-learned   gpt2       mesh.pp=2 data.text=[../b.jsonl] data.isolate=true
pp2-ramp              gpt2       mesh.pp=2 batch.ramp=6 batch.ramp_from=2
pp2-dp2               gpt2       n=4 mesh.pp=2
pp2-dp3               gpt2       n=6 mesh.pp=2
pp2-zero1             gpt2       n=4 mesh.pp=2 mesh.zero=1
pp2-zero2             gpt2       n=4 mesh.pp=2 mesh.zero=2
pp2-zero3             gpt2       n=4 mesh.pp=2 mesh.zero=3
pp2-gpipe-zero2       gpt2       n=4 mesh.pp=2 mesh.zero=2 mesh.schedule=gpipe train.recompute=full
pp2-gpipe-zero3       gpt2       n=4 mesh.pp=2 mesh.zero=3 mesh.schedule=gpipe
pp2-interleaved-zero1 gpt2       n=4 mesh.pp=2 mesh.zero=1 mesh.schedule=interleaved
pp2-interleaved-zero3 gpt2       n=4 mesh.pp=2 mesh.zero=3 mesh.schedule=interleaved
pp2-bubble-zero1      gpt2       n=4 mesh.pp=2 mesh.zero=1 mesh.schedule=zero-bubble
pp2-bubble-zero2      gpt2       n=4 mesh.pp=2 mesh.zero=2 mesh.schedule=zero-bubble
pp2-bubble-zero3      gpt2       n=4 mesh.pp=2 mesh.zero=3 mesh.schedule=zero-bubble train.recompute=selective
pp2-zero3-bf16        gpt2       n=4 mesh.pp=2 mesh.zero=3 precision=bf16
pp2-olmo2             olmo2      n=4 mesh.pp=2 mesh.zero=1
pp2-sgd-zero3         gpt2       n=4 mesh.pp=2 mesh.zero=3 train.optimizer=sgd train.lr=0.1

# Tp groups, cp groups and experts: bits of their own, the same ones in every run of the same mesh.
tp2                   gpt2       mesh.tp=2
tp2-rows              gpt2       mesh.tp=2 mesh.sp=false
tp4                   llama      mesh.tp=4
tp2-dp2               gpt2       n=4 mesh.tp=2
tp2-dp3               llama      n=6 mesh.tp=2
tp2-zero1             gpt2       n=4 mesh.tp=2 mesh.zero=1
tp2-zero2             gpt2       n=4 mesh.tp=2 mesh.zero=2
tp2-zero3             gpt2       n=4 mesh.tp=2 mesh.zero=3
tp2-zero3-shard       gpt2       n=8 mesh.tp=2 mesh.zero=3 mesh.shard=2
tp2-rows-full         qwen3      mesh.tp=2 mesh.sp=false train.recompute=full
tp2-selective         gpt2       mesh.tp=2 train.recompute=selective
tp2-experts           mixtral    mesh.tp=2
tp2-bf16              gpt2       n=4 mesh.tp=2 precision=bf16 train.rounding=stochastic
tp2-bf16-amx          gpt2       mesh.tp=2 precision=bf16 device.isa=avx512 pairs=emulate-amx
tp2-lora              lora-llama mesh.tp=2 lora.rank=4
tp2-freeze            gpt2       n=4 mesh.tp=2 train.freeze=["*wte*","*h.0.*","*ln_*"]
tp2-olmo2             olmo2      n=4 mesh.tp=2 mesh.zero=1
tp2-phi3              phi3       mesh.tp=2
tp2-lion              gpt2       n=4 mesh.tp=2 mesh.zero=1 train.optimizer=lion train.lr=1e-3
tp2-ramp              gpt2       n=4 mesh.tp=2 batch.ramp=6 batch.ramp_from=2
cp2                   gpt2       mesh.cp=2
cp2-gather            gpt2       mesh.cp=2 mesh.keys=gather
cp4                   llama      mesh.cp=4
cp4-gather            llama      mesh.cp=4 mesh.keys=gather
cp2-window            mistral    mesh.cp=2
cp2-dp2               gpt2       n=4 mesh.cp=2
cp2-zero1             gpt2       n=4 mesh.cp=2 mesh.zero=1
cp2-zero3             gpt2       n=4 mesh.cp=2 mesh.zero=3
cp2-zero3-gather      llama      n=2 mesh.cp=2 mesh.zero=3 mesh.keys=gather train.recompute=full
cp2-isolate           llama      mesh.cp=2 data.text=[../b.jsonl] data.isolate=true
cp2-isolate-learned   gpt2       mesh.cp=2 data.text=[../b.jsonl] data.isolate=true
cp2-experts           olmoe      mesh.cp=2
cp2-olmo2             olmo2      mesh.cp=2
cp2-phi3              phi3       mesh.cp=2 mesh.keys=gather
ep2                   mixtral    mesh.ep=2
ep4                   qwen3_moe  mesh.ep=4
ep2-olmoe             olmoe      mesh.ep=2 train.recompute=full
ep2-dp4               mixtral    n=4 mesh.ep=2
ep2-zero1             mixtral    n=4 mesh.ep=2 mesh.zero=1
ep2-zero2             mixtral    n=4 mesh.ep=2 mesh.zero=2
ep2-zero3             mixtral    n=4 mesh.ep=2 mesh.zero=3
ep2-idle              mixtral    n=2 mesh.ep=2 mesh.weights=[1,1e-6]
ep2-bf16              olmoe      mesh.ep=2 precision=bf16
ep2-lora              lora-olmoe mesh.ep=2 lora.rank=4
ep2-freeze            mixtral    mesh.ep=2 train.freeze=["*.experts.3.*","*norm*"]

# Products of axes.
pp2-tp2               gpt2       mesh.pp=2 mesh.tp=2
pp2-tp2-zero1         llama      n=8 mesh.pp=2 mesh.tp=2 mesh.zero=1 mesh.schedule=interleaved
pp2-tp2-zero3         gpt2       n=8 mesh.pp=2 mesh.tp=2 mesh.zero=3
pp2-tp2-rows          gpt2       mesh.pp=2 mesh.tp=2 mesh.sp=false mesh.schedule=gpipe
pp2-tp2-bubble        qwen2      mesh.pp=2 mesh.tp=2 mesh.schedule=zero-bubble train.recompute=selective
cp2-tp2               gpt2       mesh.cp=2 mesh.tp=2
cp2-tp2-zero1         mixtral    n=8 mesh.cp=2 mesh.tp=2 mesh.zero=1
cp2-tp2-gather        llama      mesh.cp=2 mesh.tp=2 mesh.keys=gather mesh.sp=false
pp2-cp2               gpt2       mesh.pp=2 mesh.cp=2
pp2-cp2-zero2         gpt2       n=8 mesh.pp=2 mesh.cp=2 mesh.zero=2 mesh.keys=gather
pp2-cp2-tp2           gpt2       mesh.pp=2 mesh.cp=2 mesh.tp=2
ep2-pp2               mixtral    n=4 mesh.ep=2 mesh.pp=2
ep2-pp2-zero3         mixtral    n=8 mesh.ep=2 mesh.pp=2 mesh.zero=3
ep2-pp2-bubble        mixtral    n=4 mesh.ep=2 mesh.pp=2 mesh.schedule=zero-bubble
ep2-pp2-tp2           mixtral    n=8 mesh.ep=2 mesh.pp=2 mesh.tp=2
ep2-tp2               olmoe      n=4 mesh.ep=2 mesh.tp=2
ep2-tp2-zero2         mixtral    n=8 mesh.ep=2 mesh.tp=2 mesh.zero=2 mesh.sp=false
ep2-cp2-zero3         mixtral    n=4 mesh.ep=2 mesh.cp=2 mesh.zero=3
ep2-cp2-shard         mixtral    n=8 mesh.ep=2 mesh.cp=2 mesh.zero=2 mesh.shard=2

# Replicas that agree now and then, servers, fast mode, hosts of a lab.
local                 gpt2       n=3 sync=local local.steps=4
local-delay           gpt2       n=3 sync=local local.steps=4 local.delay=2 local.momentum=0.9 local.lr=0.7
local-bf16            llama      n=2 sync=local local.steps=3 local.compress=bf16
local-whole           gpt2       n=2 sync=local local.steps=3 local.compress=none
ps                    gpt2       n=3 sync=ps train.reduce=fast
ps-rows               llama      n=3 sync=ps train.reduce=fast ps.servers=1
ps-only-serves        llama      n=3 sync=ps train.reduce=fast ps.servers=1 mesh.weights=[0.001,1,1]
ps-bf16               gpt2       n=2 sync=ps train.reduce=fast precision=bf16 ps.servers=2
fast                  gpt2       train.reduce=fast
fast-dp3              gpt2       n=3 train.reduce=fast
fast-zero3            gpt2       n=3 train.reduce=fast mesh.zero=3
fast-tp2              gpt2       n=4 train.reduce=fast mesh.tp=2 mesh.zero=1
fast-ep2              mixtral    n=4 train.reduce=fast mesh.ep=2 mesh.zero=3
hosts                 gpt2       lab=2 n=2
hosts-zero1           gpt2       lab=2 n=4 mesh.zero=1
hosts-zero3-node      gpt2       lab=2 n=4 mesh.zero=3 mesh.shard=node
hosts-pp2             gpt2       lab=2 n=2 mesh.pp=2
hosts-tp2             gpt2       lab=2 n=4 mesh.tp=2
hosts-local           gpt2       lab=2 n=2 sync=local local.steps=4
hosts-ps              gpt2       lab=2 n=2 sync=ps train.reduce=fast
hosts-bf16            gpt2       lab=2 n=2 train.reduce=fast exchange.compress=bf16
hosts-int8            gpt2       lab=2 n=2 train.reduce=fast exchange.compress=int8
hosts-int8-zero1      gpt2       lab=2 n=4 train.reduce=fast exchange.compress=int8 mesh.zero=1
hosts-topk            gpt2       lab=2 n=2 train.reduce=fast exchange.compress=topk exchange.topk=0.05
hosts-int8-goes-on    gpt2       lab=2 n=2 train.reduce=fast exchange.compress=int8 train.steps=5 | lab=2 n=2 train.reduce=fast exchange.compress=int8
hosts-int8-pays       gpt2       lab=2 train.reduce=fast exchange.compress=int8 train.steps=5 | n=3 train.reduce=fast exchange.compress=int8
hosts-topk-zero1      gpt2       lab=2 n=2 train.reduce=fast exchange.compress=topk exchange.topk=0.01 train.steps=5 | lab=2 n=1 train.reduce=fast exchange.compress=topk exchange.topk=0.01 mesh.zero=1

# Runs that stop and go on, also on another mesh.
goes-on               gpt2       train.steps=4 | train.steps=10
goes-on-dp            gpt2       train.steps=4 | n=3 train.steps=7 | n=2 mesh.zero=1
goes-on-zero          gpt2       n=3 mesh.zero=3 train.steps=3 | n=2 mesh.zero=1 train.steps=6 | n=4 mesh.zero=2 mesh.shard=2 train.steps=8 |
goes-on-pp            gpt2       n=4 mesh.pp=2 mesh.zero=1 train.steps=3 | mesh.pp=4 mesh.schedule=zero-bubble train.steps=6 | n=4 mesh.pp=2 mesh.zero=3 train.steps=8 |
goes-on-tp            gpt2       n=4 mesh.tp=2 mesh.zero=1 train.steps=3 | n=2 mesh.cp=2 train.steps=6 | mesh.pp=2 mesh.tp=2 train.steps=8 |
goes-on-ep            mixtral    n=4 mesh.ep=2 mesh.zero=3 train.steps=3 | mesh.ep=4 train.steps=6 | n=8 mesh.ep=2 mesh.pp=2 mesh.zero=2 train.steps=8 |
goes-on-lamb          gpt2       train.optimizer=lamb n=3 mesh.zero=1 train.steps=5 | train.optimizer=lamb n=2
goes-on-muon          gpt2       train.optimizer=muon n=3 mesh.zero=1 train.steps=5 | train.optimizer=muon n=2 mesh.zero=1
goes-on-lion          gpt2       train.optimizer=lion train.lr=1e-3 n=3 mesh.zero=3 train.steps=5 | train.optimizer=lion train.lr=1e-3 mesh.pp=2
goes-on-bf16          gpt2       precision=bf16 train.rounding=stochastic n=2 mesh.zero=1 train.steps=5 | precision=bf16 train.rounding=stochastic mesh.pp=2
goes-on-fp16          gpt2       precision=fp16 device.isa=reference train.loss_scale=16777216 train.steps=5 | precision=fp16 device.isa=reference train.loss_scale=16777216 n=2
goes-on-lora          lora-llama lora.rank=4 mesh.tp=2 train.steps=5 | lora.rank=4 mesh.pp=2
goes-on-freeze        gpt2       train.freeze=["*wte*","*h.0.*","*ln_*"] mesh.tp=2 train.steps=5 | train.freeze=["*wte*","*h.0.*","*ln_*"] n=3
goes-on-ramp          gpt2       batch.ramp=6 batch.ramp_from=2 n=2 train.steps=4 | batch.ramp=6 batch.ramp_from=2 mesh.pp=2
goes-on-offload       gpt2       device.offload=disk n=2 mesh.zero=1 train.steps=4 | n=3
goes-on-local         gpt2       sync=local local.steps=4 n=3 train.steps=8 | sync=local local.steps=4 n=3 train.steps=16
goes-on-local-fewer   gpt2       sync=local local.steps=4 local.delay=2 n=3 train.steps=8 | sync=local local.steps=4 local.delay=2 n=2 train.steps=16
goes-on-ps            gpt2       sync=ps train.reduce=fast n=3 train.steps=5 | sync=ps train.reduce=fast n=4 ps.servers=2

# Ranks that are killed: what the undisturbed run gives.
undisturbed           gpt2       train.steps=40
kill-dp               gpt2       n=3 train.steps=40 plan=8:KILL:1 heals=memory
kill-dp-first         gpt2       n=3 train.steps=40 plan=8:KILL:0 heals=memory
kill-dp-fewer         gpt2       n=3 train.steps=40 heal.restarts=0 plan=8:KILL:1+2 heals=memory
kill-dp-all           gpt2       n=3 train.steps=40 checkpoint.every=10 plan=saved:KILL:0+1+2 heals=checkpoint
kill-zero1            gpt2       n=3 train.steps=40 mesh.zero=1 plan=8:KILL:1 heals=memory
kill-zero1-fewer      gpt2       n=3 train.steps=40 mesh.zero=1 heal.restarts=0 plan=8:KILL:1 heals=memory
kill-zero1-disk       gpt2       n=3 train.steps=40 mesh.zero=1 heal.buddies=off checkpoint.every=10 plan=saved:KILL:1 heals=checkpoint
kill-zero2            gpt2       n=3 train.steps=40 mesh.zero=2 plan=8:KILL:0 heals=memory
kill-zero3            gpt2       n=3 train.steps=40 mesh.zero=3 plan=8:KILL:2 heals=memory
kill-zero3-fewer      gpt2       n=3 train.steps=40 mesh.zero=3 heal.restarts=0 plan=8:KILL:2 heals=memory
kill-shard            gpt2       n=4 train.steps=40 mesh.zero=3 mesh.shard=2 plan=8:KILL:1 heals=memory
kill-shard-fewer      gpt2       n=4 train.steps=40 mesh.zero=2 mesh.shard=2 heal.restarts=0 plan=8:KILL:1 heals=memory
kill-meets            gpt2       n=4 train.steps=40 mesh.zero=1 drill=rank=3,at=recover.transfer,do=kill plan=8:KILL:0 heals=memory
kill-lamb             gpt2       n=3 train.steps=40 mesh.zero=1 train.optimizer=lamb plan=8:KILL:1,20:KILL:0 heals=memory
kill-lamb-fewer       gpt2       n=3 train.steps=40 mesh.zero=1 train.optimizer=lamb heal.restarts=0 plan=8:KILL:2 heals=memory
kill-muon             gpt2       n=3 train.steps=40 mesh.zero=1 train.optimizer=muon plan=8:KILL:1,20:KILL:0 heals=memory
kill-muon-fewer       gpt2       n=3 train.steps=40 mesh.zero=1 train.optimizer=muon heal.restarts=0 plan=8:KILL:2 heals=memory
kill-sgd              gpt2       n=3 train.steps=40 mesh.zero=2 train.optimizer=sgd train.lr=0.1 plan=8:KILL:1 heals=memory
kill-stochastic       gpt2       n=3 train.steps=40 mesh.zero=1 precision=bf16 train.rounding=stochastic plan=8:KILL:1 heals=memory
kill-fp16             gpt2       n=3 train.steps=40 precision=fp16 device.isa=reference train.loss_scale_interval=4 plan=8:KILL:1 heals=memory
kill-offload          gpt2       n=3 train.steps=40 mesh.zero=1 device.offload=disk checkpoint.every=10 plan=saved:KILL:1 heals=checkpoint
kill-pp               gpt2       n=4 train.steps=40 mesh.pp=2 plan=8:KILL:2 heals=memory
kill-pp-fewer         gpt2       n=4 train.steps=40 mesh.pp=2 heal.restarts=0 plan=8:KILL:3 heals=memory
kill-pp-disk          gpt2       n=2 train.steps=40 mesh.pp=2 checkpoint.every=10 plan=saved:KILL:1 heals=checkpoint
kill-pp-zero1         gpt2       n=4 train.steps=40 mesh.pp=2 mesh.zero=1 plan=8:KILL:1 heals=memory
kill-pp-zero2         gpt2       n=4 train.steps=40 mesh.pp=2 mesh.zero=2 plan=8:KILL:0 heals=memory
kill-pp-zero3         gpt2       n=4 train.steps=40 mesh.pp=2 mesh.zero=3 mesh.schedule=zero-bubble plan=8:KILL:2 heals=memory
kill-pp-zero3-disk    gpt2       n=4 train.steps=40 mesh.pp=2 mesh.zero=3 heal.buddies=off checkpoint.every=10 plan=saved:KILL:1 heals=checkpoint
kill-tp               gpt2       n=4 train.steps=40 mesh.tp=2 plan=8:KILL:1 heals=memory
kill-tp-zero1         gpt2       n=4 train.steps=40 mesh.tp=2 mesh.zero=1 plan=8:KILL:0 heals=memory
kill-tp-zero2         gpt2       n=4 train.steps=40 mesh.tp=2 mesh.zero=2 checkpoint.every=10 plan=saved:KILL:1 heals=checkpoint
kill-cp               gpt2       n=4 train.steps=40 mesh.cp=2 plan=8:KILL:1 heals=memory
kill-cp-zero1         gpt2       n=4 train.steps=40 mesh.cp=2 mesh.zero=1 plan=8:KILL:2 heals=memory
kill-cp-tp            gpt2       n=4 train.steps=40 mesh.cp=2 mesh.tp=2 plan=8:KILL:1 heals=memory
kill-pp-tp            gpt2       n=8 train.steps=40 mesh.pp=2 mesh.tp=2 plan=8:KILL:5 heals=memory
kill-ep               mixtral    n=4 train.steps=40 mesh.ep=2 plan=8:KILL:1 heals=memory
kill-ep-zero1         mixtral    n=4 train.steps=40 mesh.ep=2 mesh.zero=1 plan=8:KILL:0 heals=memory
kill-ep-zero3         mixtral    n=4 train.steps=40 mesh.ep=2 mesh.zero=3 checkpoint.every=10 plan=saved:KILL:1 heals=checkpoint
kill-ep-pp-zero3      mixtral    n=8 train.steps=40 mesh.ep=2 mesh.pp=2 mesh.zero=3 checkpoint.every=10 plan=saved:KILL:1 heals=checkpoint
kill-lora             lora-llama n=3 train.steps=40 lora.rank=4 plan=8:KILL:1 heals=memory
kill-freeze           gpt2       n=4 train.steps=40 mesh.pp=2 train.freeze=["*wte*","*h.0.*","*ln_*"] plan=8:KILL:1 heals=memory
kill-auto             gpt2       n=3 train.steps=40 mesh=auto plan=8:KILL:1 heals=memory
kill-and-goes-on      gpt2       n=3 mesh.zero=1 train.steps=30 plan=8:KILL:1 heals=memory | mesh.pp=2 train.steps=40
"""
COLUMNS = ["name", "run", "weights_hash", "loss", "val_loss"]
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Failed(Exception):
    pass


def rows():
    for line in ROWS.splitlines():
        if line and line[0] != "#":
            name, rest = line.split(maxsplit=1)
            yield name, " ".join(rest.split())


def command(words, **more):
    done = subprocess.run(words, capture_output=True, text=True, **more)
    if done.returncode:
        raise Failed(f"exit {done.returncode}: {(done.stderr or done.stdout).strip()[-600:]}")


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)


def prepare(program, work):
    """What rows read beside the built-in text: models to tune, texts, shards, a tokenizer."""
    for family in ("gpt2", "llama", "olmoe"):
        write(f"{work}/first/{family}.yaml", RUN.replace("MODEL", f"model: {{{MODELS[family]}}}"))
        command([program, "train", f"{family}.yaml", "--set", f"out={family}", "--set", "train.steps=4"], cwd=f"{work}/first")
        command([program, "export", family, f"../hf-{family}"], cwd=f"{work}/first")
    write(f"{work}/a.txt", "".join(f"In house {i} there were {i * i % 97} mice, and each of them had {i % 7} hats.\n" for i in range(99)))
    write(f"{work}/b.jsonl", "".join(json.dumps({"text": f"A fox of {i} years ran {i * 3} miles."}) + "\n" for i in range(99)))
    talk = lambda i: [{"role": "user", "content": f"What is {i} and {i}?"}, {"role": "assistant", "content": f"It is {i + i}."}]
    write(f"{work}/chat.jsonl", "".join(json.dumps({"messages": talk(i)}) + "\n" for i in range(40)))
    command([program, "data", "tokenizer", "--train", "builtin:stories:64K", "--vocab", "300", "-o", "words"], cwd=work)
    command([program, "data", "build", "builtin:stories:64K", "--tokenizer", "bytes", "-o", "stories.lst"], cwd=work)


def part(program, folder, words):
    """One part of a run, until it stops; what it had to do with an incident is checked."""
    own = {key: value for key, value in (word.split("=", 1) for word in words)}
    n, lab, plan, heals, drill, pairs = (own.pop(key, None) for key in ("n", "lab", "plan", "heals", "drill", "pairs"))
    sets = [word for key, value in own.items() for word in ("--set", f"{key}={value}")]
    env = dict(os.environ, LINESHAFT=program, LINESHAFT_BF16=pairs or "off", **({"LINESHAFT_DRILL": drill} if drill else {}))
    if plan:
        killer = f"{ROOT}/tests/train_and_kill.py"
        done = subprocess.run([sys.executable, killer, "out", n, plan, *sets], cwd=folder, env=env, capture_output=True, text=True)
        if done.returncode:
            raise Failed(f"exit {done.returncode}: {open(folder + '/out.err').read()[-600:]} {done.stderr[-300:]}")
        sources = re.findall(r'"event":"incident".*"source":"(\w+)"', open(f"{folder}/out/events.jsonl").read())
        if not sources or sources[-1] != heals:
            raise Failed(f"ranks came from {sources[-1:]} and not from {heals}: {open(folder + '/out.err').read()[-600:]}")
    else:
        hosts = [program, "lab", "--nodes", lab, "--"] if lab else []
        command([*hosts, program, "train", "run.yaml", "--json", *(["-n", n] if n else []), "--set", "out=out", *sets], cwd=folder, env=env)


def row(program, work, name, run):
    """What a run gives: the columns behind its name, or why it failed."""
    model, *words = run.split()
    folder = f"{work}/{name}"
    write(f"{folder}/run.yaml", RUN.replace("MODEL", f"model: {{{MODELS[model]}}}"))
    parts = [[]]
    for word in words:
        if word == "|":
            parts.append([])
        else:
            parts[-1].append(word)
    try:
        for one in parts:
            part(program, folder, one)
        told = open(f"{folder}/out/events.jsonl").read().splitlines()
    except (Failed, OSError) as error:
        return str(error)
    finally:
        if os.path.isdir(f"{folder}/out/data"):
            subprocess.run(["rm", "-rf", f"{folder}/out/data"], check=True)
    last = lambda event, key: [re.search(f'"{key}":"?([^",}}]*)', line) for line in told if f'{{"event":"{event}"' in line][-1]
    found = [last("summary", "weights_hash"), last("step", "loss"), last("summary", "val_loss")]
    return [run] + [match.group(1) if match else "-" for match in found]


def table_of(path):
    if not os.path.exists(path):
        return {}
    with open(path) as file:
        lines = [line.rstrip("\n").split("\t") for line in file]
    return {line[0]: line[1:] for line in lines[1:]}


def judge(want, got):
    if isinstance(got, str):
        return f"FAILS: {got}"
    if not want:
        return "not in the table: --record"
    if want[0] != got[0]:
        return "another run than in the table: --record"
    other = [f"{name} was {old}" for name, old, new in zip(COLUMNS[2:], want[1:], got[1:]) if old != new]
    return "DIFFERS: " + ", ".join(other) if other else "same"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", required=True)
    parser.add_argument("--table", required=True)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--exact", action="store_true", help="the names of rows, and not parts of them")
    parser.add_argument("filter", nargs="*")
    args = parser.parse_args()
    program, table, bad, left, told = os.path.abspath(os.environ["LINESHAFT"]), table_of(args.table), 0, 0, 0
    hosts = subprocess.run([program, "lab", "--nodes", "1", "--", "true"], capture_output=True).returncode == 0
    wide = "avx512bw" in open("/proc/cpuinfo").read()
    named = lambda name: name in args.filter if args.exact else any(word in name for word in args.filter)
    chosen = [(name, run) for name, run in rows() if not args.filter or named(name)]
    if len(chosen) < (len(args.filter) if args.exact else 1):
        sys.exit(f"there are no rows of these names: {args.filter}")
    prepare(program, args.work)
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        can = [(hosts or "lab=" not in run) and (wide or "isa=avx512" not in run) for _, run in chosen]
        runs = [pool.submit(row, program, args.work, *one) if able else None for one, able in zip(chosen, can)]
        for (name, run), future in zip(chosen, runs):
            if not future:
                left += 1
                continue
            got = future.result()
            verdict = judge(table.get(name), got)
            if args.record and not isinstance(got, str):
                verdict, table[name] = "recorded" if verdict != "same" else verdict, got
            told += 1
            bad += verdict not in ("same", "recorded")
            values = "  ".join(got[1:]) if not isinstance(got, str) else ""
            print(f"{name:22} {values}  {verdict}", flush=True)
    if args.record:
        lines = [[name] + table[name] for name, _ in rows() if name in table]
        write(args.table, "".join("\t".join(line) + "\n" for line in [COLUMNS] + lines))
    print(f"{told} rows, {bad} differ" + (f"; {left} left out: no hosts of a lab or no AVX-512 here" if left else ""))
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
