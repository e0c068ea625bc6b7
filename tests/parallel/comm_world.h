/* comm_world.h -- a model with all that a call needs, on one process or on a rank that has a part of it,
 * for tests that compare both. */
#pragma once
#include "model/pass.h"
#include "parallel/mp_group.h"

enum { SIDE_TOKENS = 512 };

typedef struct side {
    ls_run run;
    ls_device *device;
    ls_stream *stream;
    ls_model model;
    ls_pass_args args;
    ls_pass *pass;
    int64_t T;       /* tokens of each sequence that it has */
    float *w, *grad; /* owned */
    void *w_read;    /* the weights in the type that the pass reads */
    float losses[SIDE_TOKENS];
    int32_t tokens[SIDE_TOKENS], targets[SIDE_TOKENS], start[SIDE_TOKENS];
    bool documents; /* start says where each begins */
    bool borrowed;  /* the stream, and its device */
    ls_step_state state;
} side;

/* A part of the model of s->run, on one thread, ready for calls as args say, but for what is filled
 * in here: model, kernels, training, recompute_blocks, and the stream if there is none. Weights have their first values,
 * also in the type of args; those that would start alike everywhere are moved a little, by their
 * place in the whole model. Bytes of the device that the calls have taken. */
int64_t open_side(side *s, int64_t vocab, ls_model_split split, const char *kernels,
                  ls_pass_args args);
void close_side(side *s);

/* For open_side(): a stream, with a device of one thread. */
ls_stream *open_stream(void);
void close_stream(ls_stream *stream); /* NULL is allowed */

/* From now on tensors lie on the device of the stream, and moves of the group are collectives of its
 * memory, through the host. */
void move_by_device(ls_mp_group *group, ls_stream *stream, const char *axis, bool halves);

/* A call with all of s->tokens. */
ls_pass_call call_of(side *s);

/* Two calls, of which the second adds to the first's gradient. */
void train_twice(side *s);

/* Tensor p of a part began as in the whole, and its gradient is that of the whole within a part of
 * its norm. who: for the message. */
void check_gradient(const side *whole, const side *part, const ls_param *p, double tolerance,
                    const char *who);
