/* pp_schedule_proof.c -- is a table of a pipeline right? Found by running it with the hardest rules.
 *
 * Every rank goes through its list. Work is done at once, if what it needs is there; a send waits
 * until its receiver has come to the very receive, and a receive likewise: no message is ever
 * buffered. A table that ends under these rules ends under all milder ones. When no rank can move,
 * the message names two that wait for each other, or one that waits for no rank. The proof does not use how
 * pp_schedule.c makes tables. */
#include "layout/pp_schedule.h"

#include "base/mem.h"

enum {
    HAS_INPUT = 1,     /* the activations of the stage before */
    HAS_GRADIENT = 2,  /* the gradient from the stage behind */
    DID_FORWARD = 4,   /* so activations are held */
    DID_INPUT = 8,     /* the gradient for the stage before is made */
    DID_WEIGHT = 16,   /* so activations are dropped */
    SENT_FORWARD = 32, /* each result goes out once */
    SENT_BACK = 64,
    ALL_WORK = DID_FORWARD | DID_INPUT | DID_WEIGHT
};

typedef struct prover {
    const ls_pp_schedule *p;
    uint8_t *state; /* [stages][micros] */
    int *at;        /* [ranks]: the next operation of a rank, counted in the whole table */
    int *held, *peak;
} prover;

/* "backward of micro-batch 3, chunk 1", for messages. */
static void describe(const ls_pp_schedule_op *op, ls_str *out)
{
    static const char *const work[] = {"forward", "backward", "input gradient", "weight gradient"};

    if (op->what < LS_PP_SCHEDULE_SEND)
        ls_str_append(out, work[op->what]);
    else
        ls_str_printf(out, "%s rank %d the %s",
                      op->what == LS_PP_SCHEDULE_SEND ? "sending to" : "receiving from", op->peer,
                      op->back ? "gradient" : "activations");
    ls_str_printf(out, " of micro-batch %d, chunk %d", op->micro, op->chunk);
}

static ls_status wrong(const prover *v, int rank, const ls_pp_schedule_op *op, const char *why)
{
    ls_str text;
    ls_status st;

    ls_str_init(&text);
    describe(op, &text);
    st = ls_fail(LS_EDATA, "the %s schedule is wrong: rank %d, %s: %s",
                 ls_pp_schedule_names[v->p->kind], rank, text.p, why);
    ls_str_release(&text);
    return st;
}

static uint8_t *state_of(const prover *v, int stage, int micro)
{
    return &v->state[(int64_t)stage * v->p->micros + micro];
}

/* What lies on the same rank (one rank in all) needs no message. */
static bool has_input(const prover *v, int stage, int micro)
{
    if (stage == 0)
        return true;
    if (v->p->ranks == 1)
        return *state_of(v, stage - 1, micro) & DID_FORWARD;
    return *state_of(v, stage, micro) & HAS_INPUT;
}

static bool has_gradient(const prover *v, int stage, int micro)
{
    if (stage == ls_pp_schedule_stages(v->p) - 1)
        return true;
    if (v->p->ranks == 1)
        return *state_of(v, stage + 1, micro) & DID_INPUT;
    return *state_of(v, stage, micro) & HAS_GRADIENT;
}

static ls_status work(prover *v, int rank, const ls_pp_schedule_op *op)
{
    static const int does[] = {DID_FORWARD, DID_INPUT | DID_WEIGHT, DID_INPUT, DID_WEIGHT};
    int stage = op->chunk * v->p->ranks + rank, now = does[op->what];
    uint8_t *s = state_of(v, stage, op->micro);

    if (*s & now)
        return wrong(v, rank, op, "it is done a second time");
    if (now == DID_FORWARD && !has_input(v, stage, op->micro))
        return wrong(v, rank, op, "its input is not there yet");
    if (now != DID_FORWARD && !(*s & DID_FORWARD))
        return wrong(v, rank, op, "its forward is not done yet");
    if ((now & DID_INPUT) && !has_gradient(v, stage, op->micro))
        return wrong(v, rank, op, "its gradient is not there yet");
    if (now == DID_WEIGHT && !(*s & DID_INPUT))
        return wrong(v, rank, op, "its input gradient is not done yet");
    *s = (uint8_t)(*s | now);
    if (now == DID_FORWARD && ++v->held[rank] > v->peak[rank])
        v->peak[rank] = v->held[rank];
    v->held[rank] -= (now & DID_WEIGHT) != 0;
    return LS_OK;
}

/* Whether the receive at which the receiver stands is that of this send. */
static bool meets(const prover *v, int rank, const ls_pp_schedule_op *send)
{
    const ls_pp_schedule *p = v->p;
    int from = send->chunk * p->ranks + rank, to = send->back ? from - 1 : from + 1;
    const ls_pp_schedule_op *recv = &p->ops[v->at[send->peer]];

    return v->at[send->peer] < p->first[send->peer + 1] && recv->what == LS_PP_SCHEDULE_RECV &&
           recv->peer == rank && recv->back == send->back && recv->micro == send->micro &&
           recv->chunk * p->ranks + send->peer == to;
}

static ls_status transfer(prover *v, int rank, const ls_pp_schedule_op *op)
{
    const ls_pp_schedule *p = v->p;
    int from = op->chunk * p->ranks + rank, to = op->back ? from - 1 : from + 1;
    uint8_t *s = state_of(v, from, op->micro), *other = state_of(v, to, op->micro);

    if (!(*s & (op->back ? DID_INPUT : DID_FORWARD)))
        return wrong(v, rank, op, "it is not made yet");
    if (*s & (op->back ? SENT_BACK : SENT_FORWARD))
        return wrong(v, rank, op, "it is sent a second time");
    *s = (uint8_t)(*s | (op->back ? SENT_BACK : SENT_FORWARD));
    *other = (uint8_t)(*other | (op->back ? HAS_GRADIENT : HAS_INPUT));
    return LS_OK;
}

/* Numbers that mean something; the rest of the proof can then index by them. */
static ls_status check_op(const prover *v, int rank, const ls_pp_schedule_op *op)
{
    const ls_pp_schedule *p = v->p;
    int stage = op->chunk * p->ranks + rank, last = ls_pp_schedule_stages(p) - 1;

    if ((unsigned)op->what > LS_PP_SCHEDULE_RECV || op->micro < 0 || op->micro >= p->micros ||
        op->chunk < 0 || op->chunk >= p->chunks)
        return ls_fail(LS_EDATA, "the %s schedule is wrong: rank %d has an operation that is none",
                       ls_pp_schedule_names[p->kind], rank);
    if (op->what < LS_PP_SCHEDULE_SEND)
        return LS_OK;
    bool up = op->back != (op->what == LS_PP_SCHEDULE_RECV); /* the other stage comes before */
    if (up ? stage == 0 : stage == last)
        return wrong(v, rank, op, "there is no stage on that side");
    if (op->peer != (up ? stage - 1 : stage + 1) % p->ranks || op->peer == rank)
        return wrong(v, rank, op, "that rank does not have the other stage");
    return LS_OK;
}

/* A rank goes on until it must wait. */
static ls_status go_on(prover *v, int rank, bool *moved_out)
{
    const ls_pp_schedule *p = v->p;
    ls_status st = LS_OK;

    for (; v->at[rank] < p->first[rank + 1] && st == LS_OK; v->at[rank]++) {
        const ls_pp_schedule_op *op = &p->ops[v->at[rank]];
        if (op->what == LS_PP_SCHEDULE_RECV) /* the sender takes both on */
            break;
        if (op->what == LS_PP_SCHEDULE_SEND && !meets(v, rank, op))
            break;
        st = op->what == LS_PP_SCHEDULE_SEND ? transfer(v, rank, op) : work(v, rank, op);
        if (op->what == LS_PP_SCHEDULE_SEND)
            v->at[op->peer]++;
        *moved_out = true;
    }
    return st;
}

static ls_status deadlock(const prover *v)
{
    const ls_pp_schedule *p = v->p;
    ls_str text;
    ls_status st;
    int named = 0;

    ls_str_init(&text);
    for (int r = 0; r < p->ranks && named < 2; r++) {
        if (v->at[r] == p->first[r + 1])
            continue;
        ls_str_printf(&text, "%srank %d waits at ", named++ ? "; " : "", r);
        describe(&p->ops[v->at[r]], &text);
    }
    st = ls_fail(LS_EDATA, "the %s schedule never ends: %s", ls_pp_schedule_names[p->kind], text.p);
    ls_str_release(&text);
    return st;
}

static ls_status all_done(const prover *v)
{
    const ls_pp_schedule *p = v->p;

    for (int r = 0; r < p->ranks; r++)
        if (v->at[r] < p->first[r + 1])
            return deadlock(v);
    for (int s = 0; s < ls_pp_schedule_stages(p); s++)
        for (int i = 0; i < p->micros; i++)
            if ((*state_of(v, s, i) & ALL_WORK) != ALL_WORK)
                return ls_fail(LS_EDATA,
                               "the %s schedule is wrong: rank %d leaves out a part of micro-batch "
                               "%d, chunk %d",
                               ls_pp_schedule_names[p->kind], s % p->ranks, i, s / p->ranks);
    return LS_OK;
}

static ls_status prove(prover *v)
{
    const ls_pp_schedule *p = v->p;
    ls_status st = LS_OK;
    bool moved = true;

    for (int r = 0; r < p->ranks; r++) {
        v->at[r] = p->first[r];
        for (int i = p->first[r]; i < p->first[r + 1]; i++)
            LS_TRY(st, check_op(v, r, &p->ops[i]), out);
    }
    while (moved) {
        moved = false;
        for (int r = 0; r < p->ranks; r++)
            LS_TRY(st, go_on(v, r, &moved), out);
    }
    st = all_done(v);
out:
    return st;
}

ls_status ls_pp_schedule_prove(const ls_pp_schedule *pipeline, int *peaks_out)
{
    size_t n = (size_t)pipeline->ranks;
    prover v = {.p = pipeline};
    ls_status st = LS_ENOMEM;

    v.state = ls_mem_alloc((size_t)ls_pp_schedule_stages(pipeline) * (size_t)pipeline->micros);
    v.at = ls_mem_array(3 * n, sizeof *v.at);
    if (!v.state || !v.at)
        goto out;
    v.held = v.at + n;
    v.peak = v.held + n;
    st = prove(&v);
    if (st == LS_OK && peaks_out)
        memcpy(peaks_out, v.peak, n * sizeof *peaks_out);
out:
    ls_mem_free(v.state);
    ls_mem_free(v.at);
    return st;
}
