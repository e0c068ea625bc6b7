/* fuzz_messages.c -- any bytes as messages between agents, to a coordinator of three nodes: whatever
 * comes is refused or taken, views stay whole, and nothing is sent to a node that is gone.
 *
 * Input: node, length, and that many bytes, again and again; a length of 0 loses the node. */
#include <stdlib.h>
#include "base/log.h"
#include "base/time.h"
#include "cluster/member/coordinator.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { NODES = 4, WORKERS = 2 };

typedef struct cluster {
    bool gone[NODES];
    uint64_t generation[NODES];
    ls_roster roster[NODES];
} cluster;

static void drop_line(ls_log_level level, const char *line, void *context)
{
    (void)level;
    (void)line;
    (void)context;
}

static void hear(void *context, int node, const ls_member_message *word)
{
    cluster *t = context;
    ls_member_message got;
    ls_str bytes;

    if (t->gone[node])
        abort();
    ls_str_init(&bytes);
    ls_member_message_encode(word, &bytes); /* what is told can be read */
    if (ls_member_message_decode(&got, bytes.p, bytes.len) != LS_OK ||
        ls_member_message_unpack(&got, &t->roster[node]) != LS_OK)
        abort();
    ls_str_release(&bytes);
    if (got.kind == LS_MEMBER_MESSAGE_VIEW) {
        if (got.view.plan.generation <= t->generation[node])
            abort();
        t->generation[node] = got.view.plan.generation;
    }
    ls_member_message_release(&got);
}

static void call(void *context, int node)
{
    if (((const cluster *)context)->gone[node])
        abort();
}

static void expel(void *context, int node, const char *why)
{
    (void)why;
    ((cluster *)context)->gone[node] = true;
}

static void stop(void *context, int node, int code, const ls_err_record *why)
{
    (void)context;
    (void)node;
    (void)code;
    (void)why;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    cluster t = {.gone = {false}};
    const ls_coordinator_args args = {.rules = {.restarts = 1, .least = 1},
                                      .quarantine = 2,
                                      .tell = hear,
                                      .call = call,
                                      .expel = expel,
                                      .stop = stop,
                                      .context = &t};
    ls_coordinator *p = NULL;
    int64_t now = LS_NS_PER_S;

    ls_log_set_sink(drop_line, NULL, LS_LOG_ERROR);
    if (ls_coordinator_open(&p, &args) != LS_OK)
        abort();
    for (int i = 0; i < NODES; i++)
        if (ls_coordinator_joins(p, i, i == 2 ? "h1" : "h", "10.0.0.1", WORKERS, i < 3) != LS_OK)
            abort();
    while (size >= 2) {
        int node = data[0] % NODES;
        size_t len = data[1] <= size - 2 ? data[1] : size - 2;
        ls_member_message word;
        now += LS_NS_PER_S;
        if (len == 0 && node != 0) {
            t.gone[node] = true;
            ls_coordinator_lose_node(p, node, "gone", 0, now);
        } else if (ls_member_message_decode(&word, data + 2, len) == LS_OK) {
            ls_coordinator_handle_message(p, node, &word, now);
            ls_roster any = {.nodes = 0}; /* views of others than the coordinator's */
            (void)ls_member_message_unpack(&word, &any);
            ls_roster_release(&any);
            ls_member_message_release(&word);
        }
        ls_coordinator_do_due(p, now);
        data += 2 + len;
        size -= 2 + len;
    }
    ls_coordinator_close(p);
    for (int i = 0; i < NODES; i++)
        ls_roster_release(&t.roster[i]);
    return 0;
}
