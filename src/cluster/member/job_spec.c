/* job_spec.c -- ranks 2, flags 1, how the job heals (if it does), then the words of the command.
 *
 *     02 00   01   "train\0run.yaml\0--set\0train.steps=60\0"
 *
 * Words may hold any byte but 0, so they travel as they lie in memory: each with its final 0, one
 * behind the other; the reader points into its copy. How a job heals is a struct of 4-byte numbers,
 * copied as it is: a node with another program has been refused before it asks (rendezvous.c). */
#include "cluster/member/job_spec.h"

#include "cluster/member/wire_codec.h"

enum { HEAD = 2 + 1, MEETS = 1, HEALS = 2 };

void ls_job_spec_init(ls_job_spec *work)
{
    *work = (ls_job_spec){.ranks = 0};
    ls_str_init(&work->text);
}

void ls_job_spec_release(ls_job_spec *work)
{
    ls_str_release(&work->text);
    *work->words = NULL;
}

ls_status ls_job_spec_encode(const char *const *words, int ranks, bool meeting,
                             const ls_job_spec_heal *heal, ls_str *out)
{
    ls_wire_codec_put(out, (uint64_t)ranks, 2);
    ls_wire_codec_put(out, (uint64_t)((meeting ? MEETS : 0) | (heal ? HEALS : 0)), 1);
    if (heal) /* of the same program, as all nodes have it */
        ls_str_append_bytes(out, heal, sizeof *heal);
    for (int i = 0; words[i]; i++)
        ls_str_append_bytes(out, words[i], strlen(words[i]) + 1);
    if (out->len > LS_JOB_SPEC_BYTES)
        return ls_fail(LS_EUSAGE, "a command of %zu bytes is too long for agents: at most %d",
                       out->len - HEAD, LS_JOB_SPEC_BYTES - HEAD);
    return ls_str_status(out);
}

ls_status ls_job_spec_decode(ls_job_spec *work, const void *bytes, size_t len)
{
    ls_wire_codec in = {.at = bytes, .left = len};
    int n = 0;

    work->ranks = (int)ls_wire_codec_get(&in, 2);
    uint64_t flags = ls_wire_codec_get(&in, 1);
    work->meeting = (flags & MEETS) != 0;
    work->heal = (ls_job_spec_heal){.patience_ms = 0};
    if (flags & HEALS) {
        const void *heal = ls_wire_codec_get_bytes(&in, sizeof work->heal);
        if (heal)
            memcpy(&work->heal, heal, sizeof work->heal);
        in.bad |=
            work->heal.patience_ms == 0 || work->heal.heartbeat_ms == 0 || work->heal.dead_ms == 0;
    }
    *work->words = NULL;
    if (in.bad || work->ranks < 1 || in.left < 2 || *in.at == 0 || in.at[in.left - 1] != 0)
        return ls_fail(LS_EDATA, "the first node's word of what to run is damaged");
    ls_str_clear(&work->text);
    ls_str_append_bytes(&work->text, in.at, in.left);
    if (ls_str_status(&work->text) != LS_OK)
        return LS_ENOMEM;
    for (const char *p = work->text.p; p < work->text.p + in.left; p += strlen(p) + 1) {
        if (n == LS_JOB_SPEC_WORDS) {
            *work->words = NULL;
            return ls_fail(LS_EDATA, "the first node wants more than %d words to be run",
                           LS_JOB_SPEC_WORDS);
        }
        work->words[n++] = p;
    }
    work->words[n] = NULL;
    return LS_OK;
}
