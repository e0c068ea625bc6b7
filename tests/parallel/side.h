/* side.h -- a model with all that a call needs, on one process or on a rank that has a part of it,
 * for tests that compare both. */
#pragma once
#include "model/pass.h"

enum { SIDE_TOKENS = 512 };

typedef struct side {
    ls_run run;
    ls_device *device;
    ls_stream *stream;
    ls_model model;
    ls_pass_args args;
    ls_pass *pass;
    int64_t T;       /* tokens of each sequence that it has */
    float *w, *grad; /* owned; made by start_side() */
    void *w_read;    /* the weights in the type that the pass reads */
    float losses[SIDE_TOKENS];
    int32_t tokens[SIDE_TOKENS], targets[SIDE_TOKENS], start[SIDE_TOKENS];
    ls_step_state state;
} side;

/* First weights of s->model, also in the type of s->args, and room for its gradient. What would
 * start alike everywhere is moved a little, by its place in the whole model. */
void start_side(side *s);
void close_side(side *s);

/* Tensor p of a part began as in the whole, and its gradient is that of the whole within a part of
 * its norm. who: for the message. */
void check_gradient(const side *whole, const side *part, const ls_param *p, double tolerance,
                    const char *who);
