/* probe.h -- "are you there?" between two nodes of a job: one datagram there, one back.
 *
 * A node must know the job's secret to answer, and answers only nodes that know it: a question and
 * an answer are 64 bytes each, of which the last 32 are an HMAC-SHA256 with the secret. An answer
 * repeats the question's random number, so an old one is worth nothing. Datagrams, because a
 * connection would have to be made first, and a silent node's kernel makes it even when its agent
 * hangs. One thread. */
#pragma once
#include "base/err.h"

LS_C_BEGIN

enum { LS_PROBE_BYTES = 64, LS_PROBE_OPEN = 16 };

typedef struct ls_probe ls_probe;

/* Answer at this address of this machine, at a port that the kernel chooses. secret: 32 bytes,
 * borrowed until it is closed. */
ls_status ls_probe_open(ls_probe **probe_out, const char *ip, const uint8_t *secret);
void ls_probe_close(ls_probe *probe); /* NULL is allowed */

int ls_probe_fd(const ls_probe *probe); /* readable: call next */
uint16_t ls_probe_port(const ls_probe *probe);

/* Ask the node at this address; tag is the caller's. LS_EBUSY: LS_PROBE_OPEN questions are open.
 * LS_EIO, LS_EUSAGE: it cannot be asked. */
ls_status ls_probe_ask(ls_probe *probe, const char *ip, uint16_t port, uint32_t tag,
                       int64_t deadline_ns);

/* Answer questions, and read answers. True: a question is settled, by an answer or by its deadline;
 * call again. */
bool ls_probe_next(ls_probe *probe, int64_t now, uint32_t *tag_out, bool *reached_out);

LS_C_END
