/* probe.c -- numbers of the model, for the scripts of tests/conformance to compare.
 *
 *   conformance-probe check INPUT OUTPUT [SETTING ...]
 *   conformance-probe train INPUT OUTPUT [SETTING ...]
 *   conformance-probe greedy INPUT OUTPUT [SETTING ...]
 *
 * A setting is one of the run file ("model.import=FOLDER", "train.lr=1e-3"); the weights are those
 * of the folder in model.import. INPUT and OUTPUT are safetensors files; whatever INPUT has under
 * the name of a parameter takes its place, so that both sides can start with the same LoRA.
 *
 *   check   INPUT: tokens, targets [B, T]. OUTPUT: logits [B, T, V], losses [B, T], and for every
 *           trained parameter its gradient of the mean loss over targets that are not -1, as
 *           "ordered/NAME" (a leaf for each sequence) and "fast/NAME".
 *   train   INPUT: tokens, targets [N, B, T]. OUTPUT: losses and norms [N] of N steps at the
 *           constant rate train.lr, as the training loop makes them, and all weights after them.
 *   greedy  INPUT: tokens [1, P], pieces [n]. The prompt is read in pieces of the given lengths
 *           (their sum is P) into the key/value cache, then one token at a time until the context
 *           is full. OUTPUT: tokens [context - P], margins (how far the best logit was ahead).
 *
 * It uses only what training and serving use: pass, step, folder. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <unistd.h>
#include "base/file.h"
#include "base/mem.h"
#include "base/time.h"
#include "checkpoint/safetensors.h"
#include "config/runfile.h"
#include "hf/hf_folder.h"
#include "train/step/step.h"

enum { MOST_ITEMS = 4096, WAIT_S = 600 };

typedef struct probe {
    ls_run run;
    ls_model model;
    ls_device *device;
    ls_stream *stream;
    const ls_kernels *kernels;
    ls_safetensors input;
    float *w;                   /* host, model.flat of them */
    ls_safetensors_item *items; /* of the output; bytes owned */
    char (*names)[LS_PARAM_NAME + 16];
    int n_items;
} probe;

/* --- files ------------------------------------------------------------------------------------ */

/* Add a tensor to the output; bytes, from ls_mem_*, are given away. */
static void put(probe *p, const char *prefix, const char *name, ls_dtype type, void *bytes,
                int ndim, const int64_t *shape)
{
    ls_safetensors_item *item = &p->items[p->n_items];

    LS_BUG_IF(p->n_items == MOST_ITEMS, "too many tensors");
    snprintf(p->names[p->n_items], sizeof p->names[0], "%s%s", prefix, name);
    *item = (ls_safetensors_item){
        .name = p->names[p->n_items], .type = type, .ndim = ndim, .bytes = bytes};
    memcpy(item->shape, shape, (size_t)ndim * sizeof *shape);
    p->n_items++;
}

/* Part of a flat host buffer as a tensor of its own. */
static ls_status put_param(probe *p, const char *prefix, const ls_param *param, const float *from)
{
    float *copy = ls_mem_array((size_t)param->count, sizeof *copy);

    if (!copy)
        return LS_ENOMEM;
    memcpy(copy, from, (size_t)param->count * sizeof *copy);
    put(p, prefix, param->name, LS_F32, copy, param->ndim, param->shape);
    return LS_OK;
}

static ls_status write_output(probe *p, const char *path)
{
    ls_str head;
    ls_status st = LS_OK;
    int fd = -1;

    ls_str_init(&head);
    LS_TRY(st, ls_safetensors_layout(p->items, p->n_items, &head), out);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) {
        st = ls_fail_sys(LS_EIO, "cannot write \"%s\"", path);
        goto out;
    }
    LS_TRY(st, ls_file_write_all(fd, head.p, head.len, path), out);
    for (int i = 0; i < p->n_items; i++) {
        const ls_safetensors_item *item = &p->items[i];
        LS_TRY(st, ls_file_write_all(fd, item->bytes, (size_t)(item->end - item->begin), path),
               out);
    }
out:
    if (fd >= 0)
        close(fd);
    ls_str_release(&head);
    return st;
}

/* A tensor of int32 of the input; shape_out gets ndim sizes. */
static ls_status get_ints(const probe *p, const char *name, int ndim, int64_t *shape_out,
                          const int32_t **values_out)
{
    const ls_safetensors_entry *e = ls_safetensors_find(&p->input, name);

    if (!e || e->ndim != ndim || e->dtype->type != LS_I32)
        return ls_fail(LS_EUSAGE, "the input needs \"%s\", I32 of %d dimensions", name, ndim);
    memcpy(shape_out, e->shape, (size_t)ndim * sizeof *shape_out);
    *values_out = (const int32_t *)((const char *)p->input.bytes + e->begin);
    return LS_OK;
}

/* --- opening ---------------------------------------------------------------------------------- */

/* What the input has under the name of a parameter takes its place. */
static ls_status load_input(probe *p)
{
    for (int i = 0; i < p->model.n_params; i++) {
        const ls_param *param = &p->model.params[i];
        const ls_safetensors_entry *e = ls_safetensors_find(&p->input, param->name);
        if (!e)
            continue;
        if (e->dtype->type != LS_F32 || e->end - e->begin != param->count * 4)
            return ls_fail(LS_EUSAGE, "\"%s\" has another size or type", param->name);
        memcpy(p->w + param->first, (const char *)p->input.bytes + e->begin,
               (size_t)(e->end - e->begin));
    }
    return LS_OK;
}

static ls_status load_weights(probe *p)
{
    ls_hf_folder *folder = NULL;
    ls_status st = LS_OK;

    LS_TRY(st, ls_hf_folder_open(&folder, p->run.model.import, -1), out);
    LS_TRY(st, ls_hf_folder_check(folder, &p->model), out);
    LS_TRY(st, ls_hf_folder_load(folder, &p->model, p->w), out);
    LS_TRY(st, load_input(p), out);
out:
    ls_hf_folder_close(folder);
    return st;
}

static ls_status open_probe(probe *p, const char *input, const char *const *sets, int n_sets)
{
    static const char text[] = "data: {text: [\"builtin:stories\"]}\n";
    ls_status st = LS_OK;

    LS_TRY(st, ls_safetensors_open(&p->input, input), out);
    LS_TRY(st,
           ls_runfile_load(&p->run, &(ls_runfile_source){.text = text,
                                                         .len = sizeof text - 1,
                                                         .sets = sets,
                                                         .n_sets = n_sets,
                                                         .no_environment = true}),
           out);
    LS_TRY(st, ls_model_init(&p->model, &p->run, p->run.model.vocab), out);
    LS_TRY(st, ls_device_open(&p->device, "auto", (int)ls_max_i64(p->run.device.threads, 0)), out);
    LS_TRY(st, ls_stream_create(&p->stream, p->device), out);
    LS_TRY(st, ls_kernel_pick("auto", &p->kernels), out);
    p->w = ls_mem_array((size_t)p->model.flat, sizeof *p->w);
    p->items = ls_mem_array(MOST_ITEMS, sizeof *p->items);
    p->names = ls_mem_array(MOST_ITEMS, sizeof *p->names);
    if (!p->w || !p->items || !p->names) {
        st = LS_ENOMEM;
        goto out;
    }
    st = load_weights(p);
out:
    return st;
}

static void close_probe(probe *p)
{
    for (int i = 0; i < p->n_items; i++) {
        void *bytes;
        memcpy(&bytes, &p->items[i].bytes, sizeof bytes); /* put() took it over */
        ls_mem_free(bytes);
    }
    ls_mem_free(p->items);
    ls_mem_free(p->names);
    ls_mem_free(p->w);
    ls_stream_free(p->stream);
    ls_device_close(p->device);
    ls_model_release(&p->model);
    ls_runfile_release(&p->run);
    ls_safetensors_close(&p->input);
}

/* --- device memory ---------------------------------------------------------------------------- */

static ls_status finish(const probe *p)
{
    return ls_stream_sync(p->stream, ls_time_now_ns() + WAIT_S * LS_NS_PER_S);
}

/* Device memory with a copy of host memory (or zeros, where from is NULL). */
static ls_status send(const probe *p, const void *from, int64_t bytes, void **memory_out)
{
    ls_status st = ls_device_alloc(p->device, bytes, "probe", memory_out);

    if (st != LS_OK || !from)
        return st;
    ls_stream_copy_in(p->stream, *memory_out, from, bytes);
    return finish(p);
}

/* Host memory with a copy of device memory. */
static ls_status fetch(const probe *p, const void *from, int64_t bytes, void **copy_out)
{
    void *copy = ls_mem_alloc((size_t)bytes);

    if (!copy)
        return LS_ENOMEM;
    ls_stream_copy_out(p->stream, copy, from, bytes);
    ls_status st = finish(p);
    if (st == LS_OK)
        *copy_out = copy;
    else
        ls_mem_free(copy);
    return st;
}

static ls_status fetch_floats(const probe *p, const void *from, int64_t n, float **copy_out)
{
    void *copy = NULL;
    ls_status st = fetch(p, from, n * (int64_t)sizeof(float), &copy);

    *copy_out = copy;
    return st;
}

/* --- check ------------------------------------------------------------------------------------ */

enum { W, TOKENS, TARGETS, LOSSES, GRAD, LOGITS, STATE, BUFFERS };

typedef struct check {
    int64_t B, T, V;
    const int32_t *tokens, *targets;
    void *buffers[BUFFERS]; /* device memory */
    ls_pass *pass;
} check;

static ls_pass_call call_of(const check *c, bool ordered)
{
    return (ls_pass_call){.w = c->buffers[W],
                          .tokens = c->buffers[TOKENS],
                          .targets = c->buffers[TARGETS],
                          .B = c->B,
                          .T = c->T,
                          .state = c->buffers[STATE],
                          .losses = c->buffers[LOSSES],
                          .grad = c->buffers[GRAD],
                          .leaves = ordered ? c->B : 1,
                          .ordered = ordered};
}

static ls_status open_check(const probe *p, check *c)
{
    int64_t M = c->B * c->T, four = (int64_t)sizeof(float), counted = 0;
    ls_status st = LS_OK;

    for (int64_t i = 0; i < M; i++)
        counted += c->targets[i] >= 0;
    const ls_step_state state = {.grad_scale = (float)(1.0 / (double)counted)};
    LS_TRY(st, send(p, p->w, p->model.flat * four, &c->buffers[W]), out);
    LS_TRY(st, send(p, c->tokens, M * four, &c->buffers[TOKENS]), out);
    LS_TRY(st, send(p, c->targets, M * four, &c->buffers[TARGETS]), out);
    LS_TRY(st, send(p, NULL, M * four, &c->buffers[LOSSES]), out);
    LS_TRY(st, send(p, NULL, ls_pass_grad_elements(&p->model, true) * four, &c->buffers[GRAD]),
           out);
    LS_TRY(st, send(p, NULL, M * c->V * four, &c->buffers[LOGITS]), out);
    LS_TRY(st, send(p, &state, sizeof state, &c->buffers[STATE]), out);
    LS_TRY(st,
           ls_pass_open(&c->pass, &(ls_pass_args){.model = &p->model,
                                                  .kernels = p->kernels,
                                                  .stream = p->stream,
                                                  .B = c->B,
                                                  .T = c->T,
                                                  .leaves = c->B,
                                                  .training = true}),
           out);
out:
    return st;
}

static void close_check(const probe *p, check *c)
{
    ls_pass_close(c->pass);
    for (int i = 0; i < BUFFERS; i++)
        ls_device_free(p->device, c->buffers[i]);
}

/* The head over all rows of the final norm, the last thing that a forward pass computes. Training
 * never holds all logits, so this product is made here. */
static ls_status put_logits(probe *p, check *c)
{
    const ls_model *m = &p->model;
    ls_pass_call call = call_of(c, false);
    int64_t shape[3] = {c->B, c->T, c->V};
    ls_pass_tensor last = {.x = NULL}, next;
    float *logits = NULL;

    ls_pass_forward(c->pass, &call);
    for (int i = 0; ls_pass_computed(c->pass, &call, i, &next); i++)
        last = next;
    p->kernels->linear_fwd(p->stream, &(ls_linear_fwd){.x = last.x,
                                                       .w = (const float *)call.w + m->head.w,
                                                       .y = c->buffers[LOGITS],
                                                       .M = c->B * c->T,
                                                       .N = c->V,
                                                       .K = m->shape.C,
                                                       .layout = LS_LAYOUT_NK});
    ls_status st = fetch_floats(p, c->buffers[LOGITS], c->B * c->T * c->V, &logits);
    if (st == LS_OK)
        put(p, "", "logits", LS_F32, logits, 3, shape);
    return st;
}

static ls_status put_gradients(probe *p, check *c, bool ordered)
{
    ls_pass_call call = call_of(c, ordered);
    float *grad = NULL;
    ls_status st = LS_OK;

    ls_pass_forward(c->pass, &call);
    ls_pass_backward(c->pass, &call);
    if (ordered)
        ls_pass_tie(c->pass, c->buffers[GRAD]);
    LS_TRY(st, fetch_floats(p, c->buffers[GRAD], p->model.trained, &grad), out);
    for (int i = 0; i < p->model.n_params; i++) {
        const ls_param *param = &p->model.params[i];
        if (param->trained < 0)
            continue;
        LS_TRY(st, put_param(p, ordered ? "ordered/" : "fast/", param, grad + param->trained), out);
    }
out:
    ls_mem_free(grad);
    return st;
}

static ls_status run_check(probe *p)
{
    int64_t shape[2], other[2];
    check c = {.V = p->model.shape.V};
    float *losses = NULL;
    ls_status st = LS_OK;

    LS_TRY(st, get_ints(p, "tokens", 2, shape, &c.tokens), out);
    LS_TRY(st, get_ints(p, "targets", 2, other, &c.targets), out);
    if (shape[0] != other[0] || shape[1] != other[1] || shape[1] > p->model.shape.T) {
        st = ls_fail(LS_EUSAGE, "targets are not as many as tokens, or more than the context");
        goto out;
    }
    c.B = shape[0];
    c.T = shape[1];
    LS_TRY(st, open_check(p, &c), out);
    LS_TRY(st, put_logits(p, &c), out);
    LS_TRY(st, put_gradients(p, &c, true), out);
    LS_TRY(st, put_gradients(p, &c, false), out);
    LS_TRY(st, fetch_floats(p, c.buffers[LOSSES], c.B * c.T, &losses), out);
    put(p, "", "losses", LS_F32, losses, 2, shape);
out:
    close_check(p, &c);
    return st;
}

/* --- train ------------------------------------------------------------------------------------ */

static ls_status run_steps(const probe *p, ls_step *step, const int32_t *tokens,
                           const int32_t *targets, int64_t N, double *losses, double *norms)
{
    int64_t n = p->run.batch.sequences * p->model.shape.T;
    ls_status st = LS_OK;

    for (int64_t i = 0; i < N; i++) {
        ls_step_batch batch = {.tokens = tokens + i * n, .targets = targets + i * n};
        ls_step_result result;
        ls_step_clock clock;
        ls_step_clock_begin(&clock);
        LS_TRY(st, ls_step_run(step, &batch, i, p->run.train.lr, &clock, &result), out);
        if (!result.finite) {
            st = ls_step_find_nonfinite(step, i);
            goto out;
        }
        losses[i] = result.loss;
        norms[i] = result.grad_norm;
    }
out:
    return st;
}

static ls_status put_weights(probe *p, ls_step *step)
{
    float *w = NULL;
    ls_status st = fetch_floats(p, ls_step_state_arrays(step).w, p->model.flat, &w);

    for (int i = 0; i < p->model.n_params && st == LS_OK; i++)
        st = put_param(p, "", &p->model.params[i], w + p->model.params[i].first);
    ls_mem_free(w);
    return st;
}

static ls_status run_train(probe *p)
{
    ls_step_args args = {
        .run = &p->run, .model = &p->model, .kernels = p->kernels, .stream = p->stream};
    const int32_t *tokens, *targets;
    int64_t shape[3], other[3];
    ls_step *step = NULL;
    ls_status st = LS_OK;

    LS_TRY(st, get_ints(p, "tokens", 3, shape, &tokens), out);
    LS_TRY(st, get_ints(p, "targets", 3, other, &targets), out);
    if (memcmp(shape, other, sizeof shape) != 0 || shape[1] != p->run.batch.sequences ||
        shape[2] != p->model.shape.T) {
        st = ls_fail(LS_EUSAGE, "tokens and targets must be [steps, batch.sequences, context]");
        goto out;
    }
    double *losses = ls_mem_array((size_t)shape[0], sizeof *losses);
    double *norms = ls_mem_array((size_t)shape[0], sizeof *norms);
    put(p, "", "losses", LS_F64, losses, 1, shape);
    put(p, "", "norms", LS_F64, norms, 1, shape);
    if (!losses || !norms) {
        st = LS_ENOMEM;
        goto out;
    }
    ls_calls_plan(&p->run, NULL, &args.calls);
    LS_TRY(st, ls_step_open(&step, &args), out);
    ls_stream_copy_in(p->stream, ls_step_state_arrays(step).w, p->w,
                      p->model.flat * (int64_t)sizeof *p->w);
    LS_TRY(st, finish(p), out);
    LS_TRY(st, run_steps(p, step, tokens, targets, shape[0], losses, norms), out);
    st = put_weights(p, step);
out:
    ls_step_close(step);
    return st;
}

/* --- greedy ----------------------------------------------------------------------------------- */

/* A text that grows: pieces of it are read into the cache, the last logits choose what follows. */
typedef struct text {
    int32_t *tokens;          /* [context], host */
    int64_t known, read;      /* tokens known, and of those in the cache */
    void *w, *piece, *logits; /* device memory */
    float *host;              /* logits here */
    ls_pass *pass;
} text;

static ls_status read_piece(const probe *p, text *t, int64_t n)
{
    int64_t four = (int64_t)sizeof(float), V = p->model.shape.V;

    ls_stream_copy_in(p->stream, t->piece, t->tokens + t->read, n * four);
    ls_pass_logits(t->pass,
                   &(ls_pass_call){
                       .w = t->w, .tokens = t->piece, .B = 1, .T = n, .past = t->read, .leaves = 1},
                   n - 1, t->logits);
    ls_stream_copy_out(p->stream, t->host, t->logits, V * four);
    t->read += n;
    return finish(p);
}

static void choose(const probe *p, text *t, float *margin_out)
{
    int64_t V = p->model.shape.V, best = 0;
    float second = -INFINITY;

    for (int64_t i = 1; i < V; i++)
        if (t->host[i] > t->host[best])
            best = i;
    for (int64_t i = 0; i < V; i++)
        if (i != best && t->host[i] > second)
            second = t->host[i];
    *margin_out = t->host[best] - second;
    t->tokens[t->known++] = (int32_t)best;
}

static ls_status open_text(const probe *p, text *t, int64_t longest)
{
    int64_t context = p->model.shape.T, four = (int64_t)sizeof(float);
    ls_status st = LS_OK;

    t->tokens = ls_mem_array((size_t)context, sizeof *t->tokens);
    t->host = ls_mem_array((size_t)p->model.shape.V, sizeof *t->host);
    if (!t->tokens || !t->host) {
        st = LS_ENOMEM;
        goto out;
    }
    LS_TRY(st, send(p, p->w, p->model.flat * four, &t->w), out);
    LS_TRY(st, send(p, NULL, longest * four, &t->piece), out);
    LS_TRY(st, send(p, NULL, p->model.shape.V * four, &t->logits), out);
    LS_TRY(st,
           ls_pass_open(&t->pass, &(ls_pass_args){.model = &p->model,
                                                  .kernels = p->kernels,
                                                  .stream = p->stream,
                                                  .B = 1,
                                                  .T = longest,
                                                  .leaves = 1,
                                                  .cache = context}),
           out);
out:
    return st;
}

static void close_text(const probe *p, text *t)
{
    ls_pass_close(t->pass);
    ls_device_free(p->device, t->w);
    ls_device_free(p->device, t->piece);
    ls_device_free(p->device, t->logits);
    ls_mem_free(t->tokens);
    ls_mem_free(t->host);
}

static ls_status check_pieces(const int32_t *pieces, int64_t n, int64_t P, int64_t *longest_out)
{
    int64_t sum = 0, longest = 1;

    for (int64_t i = 0; i < n; i++) {
        if (pieces[i] < 1)
            return ls_fail(LS_EUSAGE, "a piece of the prompt is empty");
        sum += pieces[i];
        longest = ls_max_i64(longest, pieces[i]);
    }
    if (sum != P)
        return ls_fail(LS_EUSAGE, "the pieces are not the whole prompt");
    *longest_out = longest;
    return LS_OK;
}

static ls_status run_greedy(probe *p)
{
    int64_t shape[2], n_pieces, longest = 1, context = p->model.shape.T;
    const int32_t *prompt, *pieces;
    text t = {.known = 0};
    ls_status st = LS_OK;

    LS_TRY(st, get_ints(p, "tokens", 2, shape, &prompt), out);
    LS_TRY(st, get_ints(p, "pieces", 1, &n_pieces, &pieces), out);
    if (shape[0] != 1 || shape[1] < 1 || shape[1] > context) {
        st = ls_fail(LS_EUSAGE, "one prompt, not longer than the context, is needed");
        goto out;
    }
    LS_TRY(st, check_pieces(pieces, n_pieces, shape[1], &longest), out);
    LS_TRY(st, open_text(p, &t, longest), out);
    memcpy(t.tokens, prompt, (size_t)shape[1] * sizeof *prompt);
    t.known = shape[1];
    const int64_t told = context - t.known;
    float *margins = ls_mem_array((size_t)told, sizeof *margins);
    int32_t *tokens = ls_mem_array((size_t)told, sizeof *tokens);
    put(p, "", "margins", LS_F32, margins, 1, &told);
    put(p, "", "tokens", LS_I32, tokens, 1, &told);
    if (!margins || !tokens) {
        st = LS_ENOMEM;
        goto out;
    }
    for (int64_t i = 0; i < n_pieces; i++)
        LS_TRY(st, read_piece(p, &t, pieces[i]), out);
    for (int64_t i = 0; i < told; i++) {
        choose(p, &t, &margins[i]);
        tokens[i] = t.tokens[t.known - 1];
        if (t.known < context)
            LS_TRY(st, read_piece(p, &t, 1), out);
    }
out:
    close_text(p, &t);
    return st;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        ls_status (*run)(probe *p);
    } commands[] = {{"check", run_check}, {"train", run_train}, {"greedy", run_greedy}};
    probe p = {.n_items = 0};
    ls_status st = LS_EUSAGE;

    if (argc < 4) {
        fprintf(stderr, "conformance-probe check|train|greedy INPUT OUTPUT [SETTING ...]\n");
        return 2;
    }
    LS_TRY(st, open_probe(&p, argv[2], (const char *const *)(argv + 4), argc - 4), out);
    st = ls_fail(LS_EUSAGE, "there is no command \"%s\"", argv[1]);
    for (size_t i = 0; i < LS_COUNT(commands); i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            st = commands[i].run(&p);
    if (st == LS_OK)
        st = write_output(&p, argv[3]);
out:
    if (st != LS_OK)
        fprintf(stderr, "conformance-probe: %s\n", ls_err_last()->text);
    close_probe(&p);
    return ls_err_exit_code(st);
}
