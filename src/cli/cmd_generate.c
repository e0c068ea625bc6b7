/* cmd_generate.c -- lineshaft generate: let a checkpoint continue a text. */
#include "cli/command.h"

#include <math.h>
#include <unistd.h>
#include "base/mem.h"
#include "checkpoint/ckpt.h"
#include "cli/cmds.h"
#include "cli/term.h"
#include "config/runfile.h"
#include "data/tokenizer.h"
#include "model/decode.h"

/* A model loaded for talking. */
typedef struct speaker {
    ls_ckpt_store *store;
    int64_t step;  /* asked for; -1: the newest that verifies */
    ls_ckpt *ckpt; /* says what the model is */
    ls_run run;
    bool has_run;
    ls_tokenizer *tokenizer;
    ls_model model;
    ls_device *device;
    ls_stream *stream;
    const ls_kernels *kernels;
    void *weights;
    ls_pass *pass;
    ls_decode *decode;
} speaker;

static void speaker_release(speaker *s)
{
    ls_decode_close(s->decode);
    ls_pass_close(s->pass);
    if (s->device)
        ls_device_free(s->device, s->weights);
    ls_stream_free(s->stream);
    ls_device_close(s->device);
    ls_model_release(&s->model);
    ls_tokenizer_free(s->tokenizer);
    if (s->has_run)
        ls_runfile_release(&s->run);
    ls_ckpt_free(s->ckpt);
    ls_ckpt_close(s->store);
}

static ls_status find_checkpoint(speaker *s, const char *path)
{
    ls_str dir, passed; /* damaged ones: told by the load */
    ls_status st;

    ls_str_init(&dir);
    ls_str_init(&passed);
    LS_TRY(st, ls_ckpt_locate(path, &dir, &s->step), out);
    LS_TRY(st, ls_ckpt_open(&s->store, dir.p, false), out);
    LS_TRY(st, ls_ckpt_find(s->store, s->step, &s->ckpt, &passed), out);
    if (!s->ckpt) {
        st = ls_fail(LS_EUSAGE, "there is no checkpoint in \"%s\"", path);
        ls_err_hint("Train one first: lineshaft train RUN.");
        goto out;
    }
    const char *config = ls_ckpt_about(s->ckpt)->config;
    LS_TRY(st,
           ls_runfile_load(&s->run, &(ls_runfile_source){.text = config,
                                                         .len = strlen(config),
                                                         .text_name = ls_ckpt_path(s->ckpt),
                                                         .no_environment = true,
                                                         .no_files = true}),
           out);
    s->has_run = true;
out:
    ls_str_release(&dir);
    ls_str_release(&passed);
    return st;
}

static ls_status load_weights(speaker *s)
{
    int n = s->model.n_params;
    ls_ckpt_tensor *rows = ls_mem_array((size_t)n, sizeof *rows);
    ls_status st = LS_OK;

    if (!rows)
        return LS_ENOMEM;
    for (int i = 0; i < n; i++) {
        const ls_param *p = &s->model.params[i];
        rows[i] = (ls_ckpt_tensor){.name = p->name,
                                   .kind = "param",
                                   .type = LS_F32,
                                   .ndim = p->ndim,
                                   .shape = {p->shape[0], p->ndim > 1 ? p->shape[1] : 0},
                                   .bytes = (float *)s->weights + p->first};
    }
    if (s->step >= 0) {
        st = ls_ckpt_load(s->ckpt, rows, n);
    } else {
        bool found;
        st = ls_ckpt_load_newest(s->store, rows, n, NULL, &found);
    }
    ls_mem_free(rows);
    return st;
}

static ls_status speaker_open(speaker *s, const char *path)
{
    ls_status st;

    LS_TRY(st, find_checkpoint(s, path), out);
    LS_TRY(st, ls_tokenizer_open(&s->tokenizer, s->run.data.tokenizer), out);
    LS_TRY(st, ls_model_init(&s->model, &s->run, ls_tokenizer_vocab(s->tokenizer)), out);
    LS_TRY(st, ls_kernel_pick("auto", &s->kernels), out);
    LS_TRY(st, ls_device_open(&s->device, "auto", 0), out);
    LS_TRY(st, ls_stream_create(&s->stream, s->device), out);
    LS_TRY(
        st,
        ls_device_alloc(s->device, s->model.flat * (int64_t)sizeof(float), "weights", &s->weights),
        out);
    LS_TRY(st, load_weights(s), out);
    LS_TRY(st,
           ls_pass_open(&s->pass, &(ls_pass_args){.model = &s->model,
                                                  .kernels = s->kernels,
                                                  .stream = s->stream,
                                                  .B = 1,
                                                  .T = s->model.shape.T,
                                                  .leaves = 1}),
           out);
    LS_TRY(st, ls_decode_open(&s->decode, &s->model, s->pass, s->stream), out);
out:
    return st;
}

/* A model may write any byte; a terminal must not obey them. Files and pipes get them as they are.
 */
static void put_text(const ls_str *text, bool terminal)
{
    if (terminal)
        ls_term_text((const unsigned char *)text->p, text->len, stdout);
    else
        fwrite(text->p, 1, text->len, stdout);
}

/* Continue the prompt on standard output, token by token, never splitting a character. */
static ls_status speak(speaker *s, const char *prompt, int64_t count, const ls_sampling *sampling)
{
    ls_tokenizer_stream stream;
    ls_tokens ids;
    ls_str text;
    ls_status st;
    bool terminal = isatty(STDOUT_FILENO) == 1;

    ls_tokens_init(&ids);
    ls_str_init(&text);
    ls_tokenizer_stream_begin(&stream, s->tokenizer);
    LS_TRY(st, ls_tokenizer_encode(s->tokenizer, prompt, strlen(prompt), LS_ENCODE_TEMPLATE, &ids),
           out);
    LS_TRY(st, ls_tokens_reserve(&ids, count + 1), out);
    int64_t n = ids.count;
    if (n == 0) /* no prompt: begin as after the end of a document */
        ids.ids[n++] = ls_tokenizer_separator(s->tokenizer);
    fputs(prompt, stdout);
    for (int64_t i = 0; i < count; i++, n++) {
        LS_TRY(
            st,
            ls_decode_next(s->decode, s->weights, ids.ids, n, sampling, (uint64_t)i, &ids.ids[n]),
            out);
        if (ids.ids[n] == ls_tokenizer_separator(s->tokenizer))
            break; /* the model ended its document */
        ls_str_clear(&text);
        LS_TRY(st, ls_tokenizer_stream_feed(&stream, ids.ids[n], &text), out);
        put_text(&text, terminal);
        fflush(stdout);
    }
    ls_str_clear(&text);
    LS_TRY(st, ls_tokenizer_stream_end(&stream, &text), out);
    put_text(&text, terminal);
    putchar('\n');
out:
    ls_str_release(&text);
    ls_tokens_release(&ids);
    return st;
}

/* A number from a flag, or its default. */
static ls_status flag_number(const ls_args *args, const char *name, double preset, double least,
                             double most, double *value_out)
{
    const char *text = ls_args_value(args, name);
    char *end;

    *value_out = preset;
    if (!text)
        return LS_OK;
    *value_out = strtod(text, &end);
    if (end == text || *end || !(*value_out >= least && *value_out <= most))
        return ls_fail(LS_EUSAGE, "--%s must be a number from %.16g to %.16g, not \"%s\"", name,
                       least, most, text);
    return LS_OK;
}

static ls_status flag_whole(const ls_args *args, const char *name, double preset, double least,
                            double most, double *value_out)
{
    ls_status st = flag_number(args, name, preset, least, most, value_out);

    if (st == LS_OK && *value_out != floor(*value_out))
        st = ls_fail(LS_EUSAGE, "--%s must be a whole number, not \"%s\"", name,
                     ls_args_value(args, name));
    return st;
}

static ls_status run_generate(const ls_args *args)
{
    const char *prompt = ls_args_value(args, "prompt");
    double tokens, temperature, top_k, top_p, seed;
    speaker s = {.store = NULL};
    ls_status st;

    LS_TRY(st, flag_whole(args, "tokens", 200, 1, 1e6, &tokens), out);
    LS_TRY(st, flag_number(args, "temperature", 0.8, 0, 100, &temperature), out);
    LS_TRY(st, flag_whole(args, "top-k", 0, 0, 1e9, &top_k), out);
    LS_TRY(st, flag_number(args, "top-p", 0.95, 0, 1, &top_p), out);
    LS_TRY(st, flag_whole(args, "seed", 1, 0, 9e15, &seed), out);
    LS_TRY(st, speaker_open(&s, args->rest[0]), out);
    LS_TRY(st,
           speak(&s, prompt ? prompt : "", (int64_t)tokens,
                 &(ls_sampling){.temperature = temperature,
                                .top_k = (int64_t)top_k,
                                .top_p = top_p,
                                .seed = (uint64_t)seed}),
           out);
out:
    speaker_release(&s);
    return st;
}

static const ls_flag flags[] = {
    {.name = "prompt",
     .letter = 'p',
     .value = "TEXT",
     .doc = "Text to continue; none unless given."},
    {.name = "tokens", .letter = 'n', .value = "N", .doc = "Most tokens to add; 200 unless given."},
    {.name = "temperature",
     .value = "X",
     .doc = "Randomness: 0 takes the most likely token; 0.8 unless given."},
    {.name = "top-k", .value = "K", .doc = "Choose among the K most likely; all unless given."},
    {.name = "top-p",
     .value = "P",
     .doc = "Choose among the most likely that sum to P; 0.95 unless given."},
    {.name = "seed", .value = "N", .doc = "The same seed tells the same story; 1 unless given."},
    {.name = NULL},
};

const ls_command ls_cmd_generate = {
    .name = "generate",
    .summary = "let a trained model continue a text",
    .arguments = "CKPT",
    .least = 1,
    .most = 1,
    .about = "CKPT is a run folder, its checkpoints folder, or one manifest (step-*.json). The "
             "newest checkpoint that is whole is used.\n\nThe text ends after --tokens tokens or "
             "where the "
             "model ends its document. On a terminal, bytes that are no text are shown as dots.",
    .examples = "lineshaft generate runs/demo --prompt \"Once upon a time\"  # continue a text\n"
                "lineshaft generate runs/demo -p \"The fox\" --temperature 0  # most likely text\n"
                "lineshaft generate runs/demo/checkpoints/step-0000000400.json  # an earlier step",
    .flags = flags,
    .run = run_generate,
};
